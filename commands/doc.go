// Package commands is the Redis face of gabion: the commands, the server that
// speaks them over a network, and clients for them.
//
//	server := commands.NewServer(limiter, commands.Config{})
//	go server.Serve(listener)
//	…
//	server.Shutdown(ctx)
//	limiter.Close()
//
// REFERENCE.md, beside the code, says what each command does.
package commands

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxPassword bounds the length of a password, in bytes.
const maxPassword = 4096

// readPassword returns the first line of a file.
func readPassword(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, maxPassword+2)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", err
	}
	password := strings.TrimRight(line, "\r\n")
	switch {
	case password == "":
		return "", fmt.Errorf("%s: the first line, which is the password, is empty", name)
	case len(password) > maxPassword:
		return "", fmt.Errorf("%s: the first line, which is the password, is longer than %d bytes", name, maxPassword)
	}
	return password, nil
}

// worldReadable tells whether any user of the machine may read a file.
func worldReadable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().Perm()&0o004 != 0
}

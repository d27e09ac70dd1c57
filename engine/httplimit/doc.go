// Package httplimit limits the requests of an HTTP server by the rates of an
// engine.Limiter.
//
//	perIP, err := httplimit.New(limiter, httplimit.Policy{
//		Name: "per-ip",
//		Rate: limit.PerMinute(100),
//		Key:  httplimit.PeerIP,
//	})
//	if err != nil {
//		return err
//	}
//	return http.ListenAndServe(":8080", perIP.Wrap(mux))
//
// A request is charged before the handler sees it, and the charge is as durable
// as the limiter's are: under engine.Always it is on disk, and no restart gives
// it back. It stands whatever becomes of the request, also when the client goes
// away while it is made.
//
// # What clients are told
//
// Responses carry two fields of draft-ietf-httpapi-ratelimit-headers-11:
//
//	RateLimit-Policy: "per-ip";q=100;w=60
//	RateLimit: "per-ip";r=99;t=1
//
// The draft has windows in mind and GCRA has none, so these are the values that
// are true of it. What is exact in the limiter is rounded to whole seconds here,
// since the draft knows no others.
//
//   - q is the most that can pass at once, the burst plus one, and w the time in
//     which that much comes back, rounded up. Whoever asks for no more than q in
//     any span of w is never denied, however it is spread. For limit.PerMinute
//     and its like these are the two numbers of the name. A rate that comes back
//     whole in less than a second is told as slower than it is; a larger burst
//     mends that.
//   - r is how much would pass right now, and t the time until that grows, rounded
//     up: the time within which no more than r can pass. All of r may be spent at
//     once, as the burst permits.
//   - qu is sent if the policy names a unit.
//   - pk, the partition key, is not sent. It would give away what a server tells
//     its clients apart by, which can be a secret or an address.
//
// A request that is denied gets status 429, Retry-After in whole seconds, rounded
// up, and a problem (RFC 9457) of the type quota-exceeded. There is no Retry-After
// if no wait can help, as the request costs more than can ever pass at once.
//
// Several policies on one handler each add their own items to the fields, and the
// first that denies is the last that is asked. Those before it have been charged.
package httplimit

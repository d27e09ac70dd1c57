package httplimit

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"

	"github.com/gabiondb/gabion/engine"
)

// PeerIP is a Key: the IP address of the connection that the request came by,
// without its port. Of an IPv6 address it takes the first 64 bits, since one host
// has all that follow at its disposal. A RemoteAddr that is no address, as that
// of a Unix socket, is taken as it is, so that no request goes without a limit.
//
// It believes no field of the request. Behind a proxy all requests have the
// proxy's address: there RemoteAddr has to be set first from what the proxy says
// of them, by a handler that knows the proxy. X-Forwarded-For by itself is what a
// client likes it to be.
func PeerIP(r *http.Request) (key string, ok bool) {
	var addr netip.Addr
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		addr = ap.Addr()
	} else if addr, err = netip.ParseAddr(r.RemoteAddr); err != nil {
		return r.RemoteAddr, true
	}
	addr = addr.Unmap()
	if addr.Is4() {
		return addr.String(), true
	}
	prefix, err := addr.Prefix(64)
	if err != nil {
		return r.RemoteAddr, true
	}
	return prefix.String(), true
}

// Header returns a Key: the first value of the request's field of this name. All
// requests without it have one key, the empty one, so leaving it out is no way
// around the limit. Inventing it is, unless something before the middleware has
// checked it.
//
// The value lies on disk as it is. If it is a secret, like a token, write a Key
// that returns a hash of it.
func Header(name string) func(r *http.Request) (key string, ok bool) {
	return func(r *http.Request) (string, bool) { return r.Header.Get(name), true }
}

// storeKey returns the key in the store for that of a request. The prefix keeps
// policies apart that charge the same key: it ends with the first colon, since
// names have none. A key that is longer than the store takes is put there by its
// hash. If it were an error, clients that choose their key could have it with
// every request.
func storeKey(prefix, key string) string {
	if len(prefix)+len(key) <= engine.MaxKeyLen {
		return prefix + key
	}
	sum := sha256.Sum256([]byte(key))
	return prefix + "sha256:" + hex.EncodeToString(sum[:])
}

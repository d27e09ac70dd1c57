package httplimit

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// problem is a problem detail of RFC 9457.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

// unavailable is the problem of a request that can't be decided. It has no type
// of its own: the draft's for reduced capacity is about quotas that have been
// exceeded. Nor does it name the error, which is the operator's to know.
var unavailable = problem{
	Type:   "about:blank",
	Title:  http.StatusText(http.StatusServiceUnavailable),
	Status: http.StatusServiceUnavailable,
	Detail: "The rate limit of this request could not be determined.",
}.encode()

// quotaExceeded returns the problem of a request that the policy of this name
// denies, under the type and the title of the draft's section 10.2.1.
func quotaExceeded(name string) []byte {
	return problem{
		Type:     "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:    "Quota Exceeded",
		Status:   http.StatusTooManyRequests,
		Violated: []string{name},
	}.encode()
}

func (p problem) encode() []byte {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and a number can be encoded
	}
	return append(body, '\n')
}

// writeProblem answers r with a problem that has been encoded.
func writeProblem(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(body)
	}
}

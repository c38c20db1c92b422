package web

import (
	"net/http"
	"strings"
)

// Response remembers what has been sent, and sends 304 in place of an
// answer that the client already has.
type Response struct {
	http.ResponseWriter
	request *http.Request
	status  int
	err     error // of the last write that failed: mostly the client is gone
}

// Status is what has been sent, or what will be if nobody sets another.
func (w *Response) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

func (w *Response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.status == http.StatusNotModified {
		return len(b), nil // the client has the body
	}
	n, err := w.ResponseWriter.Write(b)
	if err != nil {
		w.err = err
	}
	return n, err
}

// WriteHeader sends the first status and ignores others.
func (w *Response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status == http.StatusOK && unchanged(w.request, w.Header().Get("ETag")) {
		status = http.StatusNotModified
		for _, name := range []string{"Content-Type", "Content-Length", "Content-Encoding"} {
			w.Header().Del(name)
		}
	}
	if status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// unchanged reports whether the client has the answer already (RFC 9110, 13.1.2).
func unchanged(r *http.Request, etag string) bool {
	if etag == "" || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	for given := range strings.SplitSeq(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		given = strings.TrimSpace(given)
		if given == "*" || strings.TrimPrefix(given, "W/") == strings.TrimPrefix(etag, "W/") {
			return true
		}
	}
	return false
}

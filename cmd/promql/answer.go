package main

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/prometheus/prometheus/util/annotations"
)

// found is what a handler has found.
type found struct {
	data     any
	warnings annotations.Annotations
	query    string // that the warnings are about
}

type finder func(r *http.Request) (found, error)

// response is the envelope of all answers.
type response struct {
	Status    string   `json:"status"`
	Data      any      `json:"data,omitempty"`
	ErrorType string   `json:"errorType,omitempty"`
	Error     string   `json:"error,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
	Infos     []string `json:"infos,omitempty"`
}

// maxNotes is how many warnings, and how many notes, an answer has.
const maxNotes = 10

// encoder encodes what a finder has found.
type encoder func(r *http.Request) ([]byte, error)

func encoded(find finder) encoder {
	return func(r *http.Request) ([]byte, error) {
		out, err := find(r)
		if err != nil {
			return nil, err
		}
		warnings, infos := out.warnings.AsStrings(out.query, maxNotes, maxNotes)
		return json.Marshal(response{Status: "success", Data: out.data, Warnings: warnings, Infos: infos})
	}
}

// answer is the handler that sends what is encoded.
func (s *service) answer(encode encoder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := encode(r)
		if err == nil {
			err = s.send(w, text)
		}
		if err == nil {
			return
		}
		e := s.apiErrorOf(err)
		if e.status >= http.StatusInternalServerError {
			cause := err
			var redis *redisError
			if errors.As(err, &redis) {
				cause = redis.cause
			}
			s.failures.Warn().Err(cause).Str("path", r.URL.Path).Int("code", e.status).Msg("query not answered")
		}
		writeError(w, e)
	})
}

// smallAnswer fits the buffers of a connection.
const smallAnswer = 64 << 10

// send writes an answer. Clients decide how fast they read, so the answers that wait for them may take a quarter of
// the memory together.
func (s *service) send(w http.ResponseWriter, text []byte) error {
	size := int64(len(text))
	defer s.unread.Add(-size)
	if waiting := s.unread.Add(size); waiting > int64(s.memory)/4 && size > smallAnswer {
		return unavailable("answers of %d bytes wait for slow clients: ask again in a second, or for less", waiting-size)
	}
	write(w, http.StatusOK, text)
	return nil
}

func writeError(w http.ResponseWriter, e *apiError) {
	if e.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	text, _ := json.Marshal(response{Status: "error", ErrorType: e.kind, Error: bounded(e.message)}) // strings have no errors
	write(w, e.status, text)
}

func write(w http.ResponseWriter, status int, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may be gone; there is nobody else to tell
}

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

// answer is the handler of a finder.
func (s *service) answer(find finder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := s.find(find, r)
		if err != nil {
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
			return
		}
		warnings, infos := out.warnings.AsStrings(out.query, maxNotes, maxNotes)
		write(w, http.StatusOK, response{Status: "success", Data: out.data, Warnings: warnings, Infos: infos})
	})
}

// find reads the form, of the URL and of a POST's body, before the finder looks at it.
func (s *service) find(find finder, r *http.Request) (found, error) {
	if err := r.ParseForm(); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return found{}, &apiError{http.StatusRequestEntityTooLarge, "bad_data", "the form is too large: at most 1 MiB is allowed"}
		}
		return found{}, badData("the form cannot be read: %v", err)
	}
	return find(r)
}

func writeError(w http.ResponseWriter, e *apiError) {
	if e.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	write(w, e.status, response{Status: "error", ErrorType: e.kind, Error: e.message})
}

func write(w http.ResponseWriter, status int, out response) {
	text, err := json.Marshal(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may be gone; there is nobody else to tell
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// gate bounds how many requests run at a time, and how many there are: those that wait hold their forms in memory.
type gate struct{ there, running chan struct{} }

func newGate(s Settings) gate {
	return gate{make(chan struct{}, s.MaxRequests), make(chan struct{}, s.Concurrency)}
}

// admit lets a finder run when it is its turn, within the time that the request and the settings allow. It reads the
// form, of the URL and of a POST's body, before that, and no form if there are too many requests.
func (s *service) admit(find finder) encoder {
	encode := encoded(find)
	return func(r *http.Request) ([]byte, error) {
		select {
		case s.gate.there <- struct{}{}:
		default:
			return nil, unavailable("%d requests are here already, which is the most allowed (PROMQL_MAX_REQUESTS): ask again in a second", s.settings.MaxRequests)
		}
		defer func() { <-s.gate.there }()
		if err := s.readForm(r); err != nil {
			return nil, err
		}
		timeout, err := durationParam(r, "timeout", false)
		if err != nil {
			return nil, err
		}
		if timeout == 0 || timeout > s.settings.Timeout {
			timeout = s.settings.Timeout
		}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		select {
		case s.gate.running <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		defer func() { <-s.gate.running }()
		ctx, stop := s.memory.watch(ctx)
		defer stop()
		text, err := encode(r.WithContext(ctx))
		if err != nil && errors.Is(context.Cause(ctx), errMemory) {
			err = unavailable("the queries that ran at this moment needed more memory than there is (GOMEMLIMIT), and were ended: ask about fewer counters or a shorter time, or again in a second")
		}
		return text, err
	}
}

func (s *service) readForm(r *http.Request) error {
	err := r.ParseForm()
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &large):
		return &apiError{http.StatusRequestEntityTooLarge, "bad_data", fmt.Sprintf("the form is too large: at most %d bytes are allowed", large.Limit)}
	}
	return badData("the form cannot be read: %v", err)
}

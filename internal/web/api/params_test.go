package api

import (
	"errors"
	"net/http"
	"testing"

	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

func TestMoment(t *testing.T) {
	t.Parallel()
	for text, want := range map[Moment]int64{
		"0": 0, "1795255200000": 1795255200000,
		"2026-11-21T10:00:00Z": 1795255200000, "2026-11-21T10:00:00.25Z": 1795255200250,
		"2026-11-21T11:00:00+01:00": 1795255200000, "2026-11-21T11:00:00 01:00": 1795255200000,
		"9999-12-31T23:59:59.999Z": hit.MaxTime,
	} {
		if got, err := text.Milli("at"); got != want || err != nil {
			t.Errorf("%s: %d %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []Moment{"", " ", "1e12", "+ 1", "1969-12-31T23:59:59Z", "2026-13-01T00:00:00Z", "253402300800000", "01:00", " 01:00"} {
		_, err := text.Milli("from")
		var input *web.InputError
		if !errors.As(err, &input) || input.Param != "from" || input.Status != http.StatusBadRequest {
			t.Errorf("%q: %v, want a bad request about from", text, err)
		}
	}
}

package stack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Total is one total of an answer of /v1/total.
type Total struct {
	Key      string    `json:"key"`
	Window   string    `json:"window"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Total    int64     `json:"total"`
	Lower    int64     `json:"lower"`
	Upper    int64     `json:"upper"` // math.MaxInt64 if it is null: unknown
	Cell     string    `json:"cell"`
	Complete bool      `json:"complete"`
}

// UnmarshalJSON reads a total whose upper may be null.
func (t *Total) UnmarshalJSON(data []byte) error {
	type plain Total // without this method
	p := plain{Upper: math.MaxInt64}
	if err := json.Unmarshal(data, &p); err != nil { // it leaves a number as it is if it reads null
		return err
	}
	*t = Total(p)
	return nil
}

// Is reports whether the total is exactly n, as far as anyone knows: upper is unknown while the machine is so
// busy that as_of falls behind.
func (t Total) Is(n int64) bool {
	return t.Total == n && t.Lower == n && (t.Upper == n || t.Upper == math.MaxInt64)
}

// Answer is what /v1/total answers.
type Answer struct {
	AsOf   time.Time `json:"as_of"`
	Totals []Total   `json:"totals"`
}

var client = &http.Client{Timeout: Hung}

// TotalOf asks GET /v1/total for one counter and window; anything but an
// answer fails the test.
func TotalOf(t testing.TB, queryURL, key, window string) Total {
	t.Helper()
	total, _, err := FetchTotal(queryURL, key, window)
	require.NoError(t, err)
	return total
}

// FetchTotal is [TotalOf] for when query may be unable to answer; asOf is the
// answer's as_of.
func FetchTotal(queryURL, key, window string) (total Total, asOf time.Time, err error) {
	answer, err := FetchTotals(queryURL, url.Values{"key": {key}, "window": {window}})
	if err != nil {
		return Total{}, time.Time{}, err
	}
	if len(answer.Totals) != 1 {
		return Total{}, time.Time{}, fmt.Errorf("total of %s over %s: %d totals in the answer, want 1", key, window, len(answer.Totals))
	}
	return answer.Totals[0], answer.AsOf, nil
}

// FetchTotals asks GET /v1/total with any parameters: key, window, at, from, to.
func FetchTotals(queryURL string, params url.Values) (Answer, error) {
	var answer Answer
	status, body, err := Do(http.MethodGet, queryURL+"/v1/total?"+params.Encode(), nil)
	return answer, decode(status, body, err, &answer)
}

// PostTotal asks POST /v1/total for many counters and windows; anything but an
// answer fails the test.
func PostTotal(t testing.TB, queryURL string, keys, windows []string) Answer {
	t.Helper()
	var answer Answer
	status, body, err := Do(http.MethodPost, queryURL+"/v1/total", map[string]any{"keys": keys, "windows": windows})
	require.NoError(t, decode(status, body, err, &answer))
	return answer
}

// EventuallyTotal waits until every hit of a counter is counted: the total over
// the window is want.
func EventuallyTotal(t testing.TB, queryURL, key, window string, want int64) Total {
	t.Helper()
	var total Total
	Eventually(t, fmt.Sprintf("a total of %d for %s over %s", want, key, window), func() (bool, string) {
		var err error
		total, _, err = FetchTotal(queryURL, key, window)
		return err == nil && total.Total == want, fmt.Sprintf("%+v %v", total, err)
	})
	return total
}

// Do sends a request, with body as JSON where it is not nil, and reads the whole answer.
func Do(method, url string, body any) (status int, answer []byte, err error) {
	var reader io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		reader = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, url, reader)
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	return resp.StatusCode, answer, nil
}

func decode(status int, body []byte, err error, into any) error {
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("status %d: %s", status, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("answer %q: %w", body, err)
	}
	return nil
}

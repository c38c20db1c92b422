package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Problem is an error in the form of RFC 9457. It has no type, which means about:blank:
// the status says what kind of error it is.
type Problem struct {
	Title  string          `json:"title" doc:"What kind of problem it is: the name of the status." example:"Bad Request"`
	Status int             `json:"status" doc:"The HTTP status." example:"400"`
	Detail string          `json:"detail" doc:"One sentence: what was wrong and what is allowed." example:"window: \"24\" is not a duration: write a whole number and a unit (s, m, h, d, w), such as 90s, 15m or 7d"`
	Errors []ProblemDetail `json:"errors,omitempty" doc:"Where the request was wrong, item by item." example:"[{\"location\":\"query.window\",\"message\":\"\\\"24\\\" is not a duration\"}]"`

	headers http.Header
}

// ProblemDetail is about one part of a request.
type ProblemDetail struct {
	Location string `json:"location,omitempty" doc:"Where: query or body, and the name of the parameter or field." example:"query.window"`
	Message  string `json:"message" doc:"What was wrong there." example:"\"24\" is not a duration"`
}

// ProblemType is the content type of a problem.
const ProblemType = "application/problem+json"

func (p *Problem) Error() string             { return p.Detail }
func (p *Problem) GetStatus() int            { return p.Status }
func (p *Problem) ContentType(string) string { return ProblemType }

// With adds a header to the answer.
func (p *Problem) With(name, value string) *Problem {
	if p.headers == nil {
		p.headers = make(http.Header)
	}
	p.headers.Set(name, value)
	return p
}

// huma describes errors by what this variable of the package makes. It is set here
// once for every service of the process.
func init() {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError { return NewProblem(status, msg, errs...) }
}

// NewProblem makes a problem from a message, or from errors if there are any.
func NewProblem(status int, msg string, errs ...error) *Problem {
	p := &Problem{Title: http.StatusText(status), Status: status, Detail: msg}
	var said []string
	for _, err := range errs {
		if err == nil {
			continue
		}
		d := ProblemDetail{Message: err.Error()}
		if e, ok := err.(huma.ErrorDetailer); ok {
			// The value is left out: it can be as large as the body.
			d = ProblemDetail{Location: e.ErrorDetail().Location, Message: e.ErrorDetail().Message}
		}
		p.Errors = append(p.Errors, d)
		if _, name, ok := strings.Cut(d.Location, "."); ok {
			said = append(said, name+": "+d.Message)
		} else {
			said = append(said, d.Message)
		}
	}
	if len(said) > 0 {
		p.Detail = strings.Join(said, "; ")
	}
	return p
}

// Headers are those that With has added.
func (p *Problem) Headers() http.Header { return p.headers }

// Write sends the problem.
func (p *Problem) Write(w http.ResponseWriter) {
	maps.Copy(w.Header(), p.headers)
	w.Header().Set("Content-Type", ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may be gone; there is nobody else to tell
}

// Excerpt quotes a value of the request, cut if it is long.
func Excerpt(s string) string {
	const most = 64
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}

package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/window"
)

// problem is an error as RFC 9457 tells it. Without a type it is about:blank:
// the status says what kind it is.
type problem struct {
	Title  string          `json:"title" doc:"What kind of problem it is: the name of the status." example:"Bad Request"`
	Status int             `json:"status" doc:"The HTTP status." example:"400"`
	Detail string          `json:"detail" doc:"One sentence: what was wrong and what is allowed." example:"window: \"24\" is not a duration: write a whole number and a unit (s, m, h, d, w), such as 90s, 15m or 7d"`
	Errors []problemDetail `json:"errors,omitempty" doc:"Where the request was wrong, item by item." example:"[{\"location\":\"query.window\",\"message\":\"\\\"24\\\" is not a duration\"}]"`
}

type problemDetail struct {
	Location string `json:"location,omitempty" doc:"Where: query or body, and the name of the parameter or field." example:"query.window"`
	Message  string `json:"message" doc:"What was wrong there." example:"\"24\" is not a duration"`
}

const problemType = "application/problem+json"

func (p *problem) Error() string             { return p.Detail }
func (p *problem) GetStatus() int            { return p.Status }
func (p *problem) ContentType(string) string { return problemType }

// huma makes its errors through variables of the package, which are set here
// once for every service of the process.
func init() {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError { return newProblem(status, msg, errs...) }
	huma.NewErrorWithContext = func(_ huma.Context, status int, msg string, errs ...error) huma.StatusError {
		return newProblem(status, msg, errs...)
	}
}

// newProblem is a problem about a message, or about errors where there are
// some: those say more than the message that huma gives them together.
func newProblem(status int, msg string, errs ...error) *problem {
	if status == http.StatusUnprocessableEntity {
		status = http.StatusBadRequest // one status for everything that the asker must mend
	}
	p := &problem{Title: http.StatusText(status), Status: status, Detail: msg}
	var said []string
	for _, err := range errs {
		if err == nil {
			continue
		}
		d := problemDetail{Message: err.Error()}
		if e, ok := err.(huma.ErrorDetailer); ok {
			// The value is left out: it can be as large as the body.
			d = problemDetail{Location: e.ErrorDetail().Location, Message: e.ErrorDetail().Message}
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

// write sends the problem outside of huma.
func (p *problem) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may be gone; there is nobody else to tell
}

// inputError is a request that the asker must mend.
type inputError struct {
	status  int
	param   string // as it is called in the request
	message string // what was wrong and what is allowed
}

func (e *inputError) Error() string { return e.param + ": " + e.message }

// badInput is a 400 about a parameter.
func badInput(param, format string, args ...any) *inputError {
	return &inputError{http.StatusBadRequest, param, fmt.Sprintf(format, args...)}
}

// problem says the error; in is where the parameter was, query or body.
func (e *inputError) problem(in string) *problem {
	return newProblem(e.status, "", &huma.ErrorDetail{Location: in + "." + e.param, Message: e.message})
}

// inputProblem is the problem of an error that may be the asker's to mend.
func inputProblem(err error, in string) error {
	var input *inputError
	if errors.As(err, &input) {
		return input.problem(in)
	}
	return err
}

// problemOf is the problem that an error is, wraps, or amounts to.
func problemOf(err error) *problem {
	var p *problem
	var bad *window.QuestionError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &bad):
		return newProblem(http.StatusBadRequest, bad.Error())
	}
	return newProblem(http.StatusInternalServerError, "a fault of this service: "+err.Error())
}

// excerpt quotes a value of the request, cut where it is long.
func excerpt(s string) string {
	const most = 64
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}

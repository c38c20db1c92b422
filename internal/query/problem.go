package query

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

// problem is an error in the form of RFC 9457.
type problem = web.Problem

const problemType = web.ProblemType

func newProblem(status int, msg string, errs ...error) *problem {
	return web.NewProblem(status, msg, errs...)
}

// inputError says that the client must correct its request.
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

// problem is the error about a parameter in that part of the request, inQuery or inBody.
func (e *inputError) problem(part string) *problem {
	return newProblem(e.status, "", &huma.ErrorDetail{Location: part + "." + e.param, Message: e.message})
}

// inputProblem is the problem of an *inputError, and any other error as it is.
func inputProblem(err error, part string) error {
	var bad *inputError
	if errors.As(err, &bad) {
		return bad.problem(part)
	}
	return err
}

// problemOf returns the problem that an error is, wraps, or stands for.
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

// excerpt quotes a value of the request, cut if it is long.
func excerpt(s string) string { return web.Excerpt(s) }

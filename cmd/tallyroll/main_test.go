package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestProgramsAreRunByName(t *testing.T) {
	for _, c := range []struct {
		args   []string
		become []string // the program and its arguments
		code   int
		says   string
	}{
		{nil, nil, 2, "Name a program"},
		{[]string{"--help"}, nil, 0, "ingest --help"},
		{[]string{"--version"}, nil, 0, "tallyroll "},
		{[]string{"ingest"}, []string{"ingest", "ingest"}, 0, ""},
		{[]string{"collect"}, []string{"collect", "collect"}, 0, ""},
		{[]string{"promql"}, []string{"promql", "promql"}, 0, ""},
		{[]string{"rls"}, []string{"rls", "rls"}, 0, ""},
		{[]string{"watch"}, []string{"watch", "watch"}, 0, ""},
		{[]string{"audit"}, []string{"audit", "audit"}, 0, ""},
		{[]string{"dev"}, []string{"dev", "dev"}, 0, ""},
		{[]string{"/query", "--help"}, []string{"query", "/query", "--help"}, 0, ""},
		{[]string{"sh"}, nil, 2, `no program "sh"`},
		{[]string{""}, nil, 2, "no program"},
	} {
		var out bytes.Buffer
		var became []string
		code := run(append([]string{"tallyroll"}, c.args...), &out, &out, func(name string, args []string) error {
			became = append([]string{name}, args...)
			return nil
		})
		if code != c.code || !slices.Equal(became, c.become) || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: code %d, becomes %q, says %q; want %+v", c.args, code, became, out.String(), c)
		}
	}
	var out bytes.Buffer
	if code := run([]string{"tallyroll", "query"}, &out, &out, func(string, []string) error { return errors.New("not there") }); code != 1 || !strings.Contains(out.String(), "not there") {
		t.Errorf("code %d, %q", code, out.String())
	}
}

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/setting"
)

type sample struct {
	line            int
	stream, subject string
	stored          time.Time
	headers         map[string]string
	body            []byte
}

// maxSample bounds a line in bytes: the largest message that a NATS server can be set to accept.
const maxSample = 64 << 20

// aboutNext matches a line about the next message, such as "# subject: orders.eu.created".
var aboutNext = regexp.MustCompile(`^#[ \t]*([A-Za-z][A-Za-z0-9_-]*):[ \t]*(.*)$`)

// readSamples calls each with every message. Lines that begin with # give the stream, subject, stored (RFC
// 3339) and headers of the message that follows. An empty line after these is a message without a body; other
// empty lines, and # without a name and a colon, are skipped.
func readSamples(in io.Reader, defaults sample, each func(sample) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxSample)
	next, about := defaults, false
	number := 0
	for lines.Scan() {
		number++
		line := bytes.TrimSuffix(lines.Bytes(), []byte{'\r'})
		if bytes.HasPrefix(line, []byte{'#'}) {
			field := aboutNext.FindStringSubmatch(string(line))
			if field == nil {
				continue
			}
			about = true
			if err := next.set(field[1], strings.TrimSpace(field[2])); err != nil {
				return setting.UsageError{Err: fmt.Errorf("line %d: %w", number, err)}
			}
			continue
		}
		if len(line) == 0 && !about {
			continue
		}
		next.line, next.body = number, line
		if err := next.complete(); err != nil {
			return setting.UsageError{Err: fmt.Errorf("line %d: %w", number, err)}
		}
		if err := each(next); err != nil {
			return err
		}
		next, about = defaults, false
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return setting.UsageError{Err: fmt.Errorf("line %d is longer than %d bytes, the most that a message can have",
			number+1, maxSample)}
	}
	return lines.Err()
}

func (s *sample) set(name, text string) (err error) {
	switch name {
	case "stream":
		s.stream = text
	case "subject":
		s.subject = text
		err = checkSubject(text)
	case "stored":
		var at int64
		at, err = hit.ParseTime(text)
		if err == nil {
			err = hit.CheckTime(at)
		}
		if err != nil {
			return fmt.Errorf("stored %q: must be a time such as 2026-11-21T10:00:00Z", text)
		}
		s.stored = time.UnixMilli(at)
	default:
		if s.headers == nil {
			s.headers = make(map[string]string)
		}
		s.headers[name] = text
	}
	return err
}

func (s *sample) complete() error {
	switch {
	case s.stream == "":
		return errors.New("the message's stream is unknown: give --stream, or # stream: NAME on a line before")
	case s.subject == "":
		return errors.New("the message's subject is unknown: give --subject, or # subject: NAME on a line before")
	}
	return nil
}

func checkSubject(text string) error {
	for token := range strings.SplitSeq(text, ".") {
		if token == "" || strings.ContainsAny(token, "*> \t") {
			return fmt.Errorf("subject %q: must be a subject without wildcards, such as orders.eu.created", text)
		}
	}
	return nil
}

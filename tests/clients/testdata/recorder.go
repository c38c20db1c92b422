package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strings"
)

// recorder keeps the answer that the client is given.
type recorder struct {
	status int
	body   []byte
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var body io.Reader = response.Body
	if response.Header.Get("Content-Type") == "text/event-stream" {
		body = &firstEvent{from: body} // the client reads all of an answer, and this one has no end
	}
	r.status = response.StatusCode
	r.body, err = io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(r.body))
	return response, nil
}

// firstEvent ends a stream of events after the first one.
type firstEvent struct {
	from io.Reader
	seen bytes.Buffer
}

func (f *firstEvent) Read(p []byte) (int, error) {
	if strings.Contains(f.seen.String(), "data:") && bytes.HasSuffix(f.seen.Bytes(), []byte("\n\n")) {
		return 0, io.EOF
	}
	n, err := f.from.Read(p[:1])
	f.seen.Write(p[:n])
	return n, err
}

// fraction of a second: the client reads it, and its own encoder leaves it out.
var fraction = regexp.MustCompile(`(\d\d:\d\d:\d\d)\.\d+Z"`)

// compare says in what the client's answer differs from the recorded one.
func (r *recorder) compare(status int, answer any) error {
	if r.status != status {
		return fmt.Errorf("the status must be %d", status)
	}
	if status == http.StatusNoContent {
		return nil
	}
	got := reflect.Indirect(reflect.ValueOf(answer))
	if got.Kind() != reflect.Struct {
		return fmt.Errorf("the client has %T", answer)
	}
	inner := got.FieldByName("Response") // beside the headers
	if inner.IsValid() {
		got = inner
	}
	data := got.FieldByName("Data") // of an answer that is no JSON
	if data.IsValid() {
		return r.compareText(data.Interface())
	}
	of := reflect.New(got.Type())
	of.Elem().Set(got)
	encoded, err := json.Marshal(of.Interface())
	if err != nil {
		return err
	}
	var ours, theirs any
	if err := json.Unmarshal(encoded, &ours); err != nil {
		return err
	}
	if err := json.Unmarshal(fraction.ReplaceAll(r.body, []byte(`${1}Z"`)), &theirs); err != nil {
		return err
	}
	if !reflect.DeepEqual(ours, theirs) {
		return fmt.Errorf("the client has %s", encoded)
	}
	return nil
}

func (r *recorder) compareText(data any) error {
	reader, ok := data.(io.Reader)
	if !ok {
		return fmt.Errorf("the client has %T", data)
	}
	text, err := io.ReadAll(reader)
	if err != nil {
		return err
	}
	if len(text) == 0 || !bytes.Equal(text, r.body) {
		return fmt.Errorf("the client has %q", text)
	}
	return nil
}

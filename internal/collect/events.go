package collect

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/rules"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
)

const (
	structuredType = "application/cloudevents+json"
	batchType      = "application/cloudevents-batch+json"
)

// eventMode returns how a request carries CloudEvents. A header of one attribute is enough for the binary
// mode, so that an event without its specversion is not read as a hit.
func eventMode(r *http.Request) rules.Mode {
	mode := rules.DetectMode(r.Header.Get("Content-Type"), r.Header.Get)
	if mode != rules.NoCloudEvent {
		return mode
	}
	for name := range r.Header {
		if strings.HasPrefix(name, attributePrefix) {
			return rules.Binary
		}
	}
	return rules.NoCloudEvent
}

func eventHeader(r *http.Request, mode rules.Mode) (nats.Header, *web.Problem) {
	if mode == rules.Binary {
		return attributes(r.Header)
	}
	given := r.Header.Get("Content-Type")
	name, params, err := mime.ParseMediaType(given)
	charset := strings.ToLower(params["charset"])
	switch {
	case err != nil || name != structuredType && name != batchType:
		return nil, web.NewProblem(http.StatusUnsupportedMediaType,
			fmt.Sprintf("Content-Type %s is not supported: for CloudEvents it must be %s or %s, or any type with "+
				"headers such as ce-type", web.Excerpt(given), structuredType, batchType)).
			WithHeader("Accept-Post", structuredType+", "+batchType)
	case charset != "" && charset != "utf-8" && charset != "us-ascii":
		return nil, web.NewProblem(http.StatusUnsupportedMediaType,
			fmt.Sprintf("Content-Type %s is not supported: a body must be in UTF-8", web.Excerpt(given)))
	}
	return nats.Header{"Content-Type": {name}}, nil
}

// attributePrefix begins the headers of attributes, as net/http writes them.
const attributePrefix = "Ce-"

func attributes(request http.Header) (nats.Header, *web.Problem) {
	for name, values := range request {
		short := strings.ToLower(strings.TrimPrefix(name, attributePrefix))
		switch {
		case !strings.HasPrefix(name, attributePrefix):
			continue
		case short == "" || strings.Trim(short, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
			return nil, notEvent(0, "ce-%s: the name of an attribute has letters and digits only", short)
		case short == "datacontenttype" && request.Get("Content-Type") != "":
			return nil, notEvent(0, "ce-datacontenttype: the header Content-Type has the same meaning: send "+
				"one of them")
		case len(values) > 1:
			return nil, notEvent(0, "ce-%s is given %d times: must be given once", short, len(values))
		}
	}
	values, refused := rules.BinaryHeaders(request)
	if refused != nil {
		return nil, notEvent(0, "%s", refused.Detail)
	}
	header := make(nats.Header)
	for name, value := range values {
		header[name] = []string{value}
	}
	return header, nil
}

func checkBinary(c *rules.Checker, header nats.Header) (rules.Identity, *web.Problem) {
	named := make(map[string]string, len(header))
	for name, values := range header {
		named[name] = values[0]
	}
	identity, refused := c.Header(named)
	if refused != nil {
		return identity, notEvent(0, "%s", refused.Detail)
	}
	return identity, nil
}

func checkStructured(c *rules.Checker, body []byte) (rules.Identity, *web.Problem) {
	trimmed := bytes.Trim(hit.TrimMark(body), " \t\r\n")
	switch {
	case len(trimmed) == 0:
		return rules.Identity{}, web.NewProblem(http.StatusBadRequest, "body: empty: must be a CloudEvent as a "+
			"JSON object")
	case trimmed[0] == '[':
		return rules.Identity{}, web.NewProblem(http.StatusBadRequest, "body: an array: must be one CloudEvent; an "+
			"array has the Content-Type "+batchType)
	}
	identity, refused := c.JSON(trimmed)
	if refused != nil {
		return identity, notEvent(0, "%s", refused.Detail)
	}
	return identity, nil
}

func notEvent(i int, format string, a ...any) *web.Problem {
	return itemsProblem(http.StatusBadRequest, []web.ProblemDetail{{Location: item(i),
		Message: sentence(fmt.Sprintf(format, a...))}}, 1)
}

// checkBatch checks an array of events. One bad event refuses all.
func checkBatch(c *rules.Checker, body []byte, most int) (events int, p *web.Problem) {
	trimmed := bytes.Trim(hit.TrimMark(body), " \t\r\n")
	if len(trimmed) == 0 || trimmed[0] != '[' {
		return 0, web.NewProblem(http.StatusBadRequest, "body: not an array: must be an array of CloudEvents; one "+
			"alone has the Content-Type "+structuredType)
	}
	var bad badItems
	all := hit.Split(trimmed)
	for all.Next() {
		switch {
		case all.Wrong != "":
			bad.add(all.Item, all.Wrong)
		case all.Item == most:
			return 0, web.NewProblem(http.StatusRequestEntityTooLarge,
				fmt.Sprintf("body: more than %d events, the most allowed (COLLECT_MAX_HITS): send them in several "+
					"requests", most))
		default:
			events++
			_, refused := c.JSON(all.Raw)
			if refused != nil {
				bad.add(all.Item, refused.Detail)
			}
		}
	}
	switch {
	case bad.total > 0:
		return 0, bad.problem(http.StatusBadRequest)
	case events == 0:
		return 0, web.NewProblem(http.StatusBadRequest, "body: the array is empty and has no event: send nothing if "+
			"nothing happened")
	}
	return events, nil
}

// eventID is the Nats-Msg-Id of a request's only event. It has a space, so it never equals an
// Idempotency-Key.
func eventID(identity rules.Identity, sender string) string {
	sum := sha256.Sum256([]byte(strconv.Quote(identity.Source) + strconv.Quote(identity.ID)))
	id := "cloudevent " + base64.RawURLEncoding.EncodeToString(sum[:])
	if sender != "" {
		id = strconv.Quote(sender) + id
	}
	return id
}

func mayDeliver(token *access.Token) *web.Problem {
	if !token.HasPrefixes() {
		return nil
	}
	return web.NewProblem(http.StatusForbidden,
		fmt.Sprintf("the token %s is about some counters only, and a CloudEvent names none: events need a token "+
			"without prefixes", token.Name())).OfKind(web.KeyOutsidePrefix)
}

// checkEvents checks the events of a request, and returns how many they are. Without an Idempotency-Key, the
// source and the id of a single event make the message's id.
func checkEvents(c *rules.Checker, mode rules.Mode, header nats.Header, body []byte,
	most int) (events int, single rules.Identity, p *web.Problem) {
	switch mode {
	case rules.Batch:
		events, p = checkBatch(c, body, most)
		return events, single, p
	case rules.Structured:
		single, p = checkStructured(c, body)
	default:
		single, p = checkBinary(c, header)
	}
	return 1, single, p
}

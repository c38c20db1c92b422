package collect

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"tallyroll/internal/web"
)

// checkType refuses a body that is said to be something else than text. Whatever text it is, its first byte
// decides how it is read: curl calls everything a form, and many clients say nothing.
func checkType(r *http.Request) *web.Problem {
	given := r.Header.Get("Content-Type")
	switch given {
	case "", "application/json", "application/x-ndjson": // the usual ones, without parsing
		return nil
	}
	name, params, err := mime.ParseMediaType(given)
	charset := strings.ToLower(params["charset"])
	switch {
	case err != nil:
	case charset != "" && charset != "utf-8" && charset != "us-ascii":
		return web.NewProblem(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type %s is not taken: a body is in UTF-8", web.Excerpt(given)))
	case strings.HasPrefix(name, "text/"), strings.HasSuffix(name, "+json"), isTextual[name]:
		return nil
	}
	return web.NewProblem(http.StatusUnsupportedMediaType,
		fmt.Sprintf("Content-Type %s is not taken: allowed are application/json (an object or an array), application/x-ndjson (an object per line), text/plain, application/cloudevents+json, application/cloudevents-batch+json and none", web.Excerpt(given))).
		With("Accept-Post", "application/json, application/x-ndjson, text/plain, application/cloudevents+json, application/cloudevents-batch+json")
}

var isTextual = map[string]bool{
	"application/json": true, "application/x-ndjson": true, "application/ndjson": true, "application/jsonl": true, "application/x-jsonlines": true,
	"application/jsonlines": true, "application/json-lines": true, "application/json-seq": false,
	"application/x-www-form-urlencoded": true, // what curl -d says of any body
}

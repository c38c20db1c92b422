package limitapi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/plain"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
)

// MaxTakes bounds the limits of one request: one script decides about all of them, and blocks Redis.
const MaxTakes = limit.MaxTogether

// MaxBody bounds a request's body: MaxTakes takes of 4 KiB, which has room for the longest key, id and limit,
// even if each byte of key and id is written as \u00XX.
const MaxBody = MaxTakes << 12

// Subject is what a request is about: the key of a limit, and what the limit's key template needs of a
// request. (Its name is exported so that structs that embed it have its fields.)
type Subject struct {
	Limit  string `query:"limit" hint:"the name of a limit" json:"limit,omitempty" doc:"The name of a limit of QUERY_LIMITS_FILE." example:"login"`
	Key    string `query:"key" hint:"a key" json:"key,omitempty" doc:"The key that has the hits. What no counter can be named (more than 512 bytes, control characters) is kept as sha256: and its SHA-256." example:"alice"`
	IP     string `query:"ip" hint:"an address, such as 203.0.113.7 or 2001:db8::1" json:"ip,omitempty" doc:"With limit, if its key template has {ip}: the client's address. Of an IPv6 address its /64 counts, as in /v1/authz." example:"203.0.113.7"`
	Method string `query:"method" hint:"a method, such as GET" json:"method,omitempty" doc:"With limit, if its key template has {method}." example:"POST"`
	Host   string `query:"host" hint:"a host, such as shop.example" json:"host,omitempty" doc:"With limit, if its key template has {host}: with or without a port." example:"shop.example"`
	Path   string `query:"path" hint:"a path, such as /login" json:"path,omitempty" doc:"With limit, if its key template has {path}: as the request has it, such as /a%20b?c=1." example:"/login"`
	// A query string has each header by its name: header.X-Plan=gold.
	Header map[string]string `headers:"header." json:"header,omitempty" doc:"With limit, if its key template has {header.NAME}: the request's headers, by their names." example:"{\"X-Plan\":\"gold\"}"`
}

// takeItem is the input of GET /v1/limit and of the endpoint limit over NATS: hits of a key under a limit.
type takeItem struct {
	Subject
	Window string     `query:"window" hint:"window" json:"window,omitempty" doc:"In place of limit: the length of the rolling window, 1s to 366d (a whole number and a unit: s, m, h, d, w, y)." example:"1m"`
	Max    api.Number `query:"max" hint:"a whole number" json:"max,omitempty" doc:"With window: how many hits are allowed in it. With limit, if it has at_most: this take's own max." example:"100"`
	Starts startDay   `query:"starts" json:"starts,omitempty" doc:"With limit, if it has at_most and counts by week or month: the day that this key's periods start on." example:"17"`
	N      api.Number `query:"n" hint:"a whole number" json:"n,omitempty" doc:"How many hits. Default: 1." example:"1"`
	Policy policyName `query:"policy" json:"policy,omitempty" doc:"With window: how hits are kept. Default for takes: cells." example:"cells"`
	ID     string     `json:"id,omitempty" doc:"Of a take or a give-back: makes it one that can be repeated. 1 to 128 bytes of UTF-8. The same id for the same limit and key counts once as long as it is remembered." example:"req-17"`
	Lease  string     `query:"lease" hint:"the name of a lease" json:"lease,omitempty" doc:"With limit, if its policy is concurrent: the name of the lease, 1 to 64 letters, digits, _, -, . and :. The same name again is the same slot, so a retry does not take two. Default of a take: a new one." example:"export-17"`
	Fail   string     `query:"fail" hint:"local, open or closed" json:"fail,omitempty" doc:"For a counter of the streams: what to do if its hits are unknown, because no worker counts or Redis does not answer: local (decide by the hits counted so far; without Redis, 503), open (allow) or closed (503). Default: local." example:"closed"`
}

// parseTake checks an item and returns its take. prefix comes before the names of its fields in errors.
func (l *limits) parseTake(ctx context.Context, item *takeItem, prefix string) (limit.Take, error) {
	token := access.From(ctx)
	lim, err := l.chooseLimit(token, item, prefix)
	if err != nil {
		return limit.Take{}, err
	}
	caller, under, err := item.fill(lim, prefix)
	if err == nil {
		err = token.CheckLimit(item.Limit, caller)
	}
	if err != nil {
		return limit.Take{}, err
	}
	n, err := parseHits(prefix+"n", item.N)
	return limit.Take{Limit: &lim.Limit, Caller: caller, Key: under, N: n, Lease: item.Lease, ID: item.ID}, err
}

// parseHits returns how many hits are meant. A request's path says what happens to them, and never the sign.
func parseHits(param string, n api.Number) (int64, error) {
	if strings.HasPrefix(string(n), "-") {
		return 0, web.BadInput(param, "%s: must be 0 or more: POST %s gives hits back", web.Excerpt(string(n)),
			ReturnPath)
	}
	return n.Parse(param, 1, 0, limit.MaxHits)
}

// fill returns the caller's key, and the key that hits are kept under.
func (i *Subject) fill(lim *limitfile.Limit, prefix string) (caller, under string, err error) {
	name := "numbers in the request"
	if lim.Name != "" {
		name = web.Excerpt(lim.Name)
	}
	variables, fields := lim.Key.Variables(), i.values()
	if i.Key != "" && !lim.Key.Uses(limitfile.VarKey) {
		return "", "", web.BadInput(prefix+"key", "the key template of %s is %s: leave it out", name, lim.Key)
	}
	for _, f := range fields {
		if !slices.ContainsFunc(variables, f.fills) {
			return "", "", web.BadInput(prefix+f.name, "the key template of %s is %s: leave it out", name, lim.Key)
		}
	}
	for _, variable := range variables {
		filled := slices.ContainsFunc(fields, func(f field) bool { return f.fills(variable) })
		if variable != limitfile.VarKey && !filled {
			return "", "", web.BadInput(prefix+variable, "missing: the key template of %s is %s", name, lim.Key)
		}
	}
	value := func(variable string) (string, error) { return i.value(variable, prefix) }
	caller, under, err = lim.Keys(value)
	if err != nil {
		return "", "", keyError(lim, err)
	}
	return caller, under, nil
}

func keyError(lim *limitfile.Limit, err error) error {
	var bad *web.InputError
	if errors.As(err, &bad) {
		return bad
	}
	return web.BadInput("limit", "the key of %s is %s, which cannot be filled: %v", web.Excerpt(lim.Name), lim.Key, err)
}

// value returns a variable of a key template, as in /v1/authz. prefix comes before field names in errors.
func (i *Subject) value(variable, prefix string) (string, error) {
	switch variable {
	case limitfile.VarKey:
		if i.Key == "" {
			return "", web.BadInput(prefix+"key", "missing or empty: must be whom the hits are of, such as a user's id")
		}
		return i.Key, nil
	case limitfile.VarIP:
		address, err := netip.ParseAddr(i.IP)
		if err != nil {
			return "", web.BadInput(prefix+"ip", "%s: must be %s", web.Excerpt(i.IP), addressHint)
		}
		return plain.Client(address), nil
	case limitfile.VarMethod:
		return plain.Method(i.Method), nil
	case limitfile.VarHost:
		return plain.Host(i.Host), nil
	case limitfile.VarPath:
		return plain.Target(i.Path), nil
	}
	out := ""
	for _, f := range i.values() {
		switch text := textproto.TrimString(f.text); {
		case !f.fills(variable):
		case out != "":
			return "", web.BadInput(prefix+f.name, "given twice: must be given once")
		case text == "":
			return "", web.BadInput(prefix+f.name, "empty: must be the value of a header")
		default:
			out = text
		}
	}
	return out, nil
}

// field is a field of a request, and the variable of key templates that it fills.
type field struct{ name, variable, text string }

func (f field) isGiven() bool { return f.text != "" }

func (f field) fills(variable string) bool { return limitfile.SameVariable(f.variable, variable) }

// values returns the given variables other than the key.
func (i *Subject) values() (out []field) {
	for _, f := range []field{{"ip", limitfile.VarIP, i.IP}, {"method", limitfile.VarMethod, i.Method},
		{"host", limitfile.VarHost, i.Host}, {"path", limitfile.VarPath, i.Path}} {
		if f.isGiven() {
			out = append(out, f)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Header)) {
		out = append(out, field{api.HeaderParam + name, limitfile.HeaderVariable(name), i.Header[name]})
	}
	return out
}

// chooseLimit returns the named limit, or the one of the numbers if the settings allow them.
func (l *limits) chooseLimit(token *access.Token, item *takeItem, prefix string) (*limitfile.Limit, error) {
	given := ""
	if i := slices.IndexFunc(item.numbers(), field.isGiven); i >= 0 {
		given = item.numbers()[i].name
	}
	switch {
	case item.Fail != "":
		return nil, web.BadInput(prefix+"fail", "only for a look at a counter of the streams: a limit of "+
			"QUERY_LIMITS_FILE has its own")
	case item.Limit != "" && (given == "window" || given == "policy"):
		return nil, web.BadInput(prefix+given, "not together with limit, which has its own")
	case item.Limit != "" && given != "":
		return l.lookupOwn(token, item, prefix, given)
	case item.Limit != "":
		return l.lookup(token, item.Limit, prefix+"limit")
	case item.Starts != "":
		return nil, web.BadInput(prefix+"starts", "only under a limit of QUERY_LIMITS_FILE that has at_most")
	case given == "":
		return nil, web.BadInput(prefix+"limit", "missing: name a limit, or give window and max")
	case l.mode != TakeAny:
		return nil, web.BadInput(prefix+given, "not allowed: this service takes numbers only with QUERY_TAKE=any: "+
			"name a limit of QUERY_LIMITS_FILE")
	}
	length, err := limitWindow(prefix, item.Window)
	if err != nil {
		return nil, err
	}
	if item.Max == "" {
		return nil, web.BadInput(prefix+"max", "missing: must be the number of hits that the window may have")
	}
	most, err := item.Max.Parse(prefix+"max", 0, 1, limit.MaxHits)
	if err != nil {
		return nil, err
	}
	lim, err := limit.Adhoc(length, most, limit.Policy(item.Policy))
	var bad *limit.FieldError
	if errors.As(err, &bad) {
		return nil, web.BadInput(prefix+bad.Field, "%s", bad.Message)
	}
	return &limitfile.Limit{Limit: *lim}, err
}

// lookupOwn returns the named limit with the item's own max and day, if the limit allows that.
func (l *limits) lookupOwn(token *access.Token, item *takeItem, prefix, given string) (*limitfile.Limit, error) {
	lim, err := l.lookup(token, item.Limit, prefix+"limit")
	if err != nil {
		return nil, err
	}
	if lim.AtMost == 0 {
		return nil, web.BadInput(prefix+given, "not together with limit, which has its own and no at_most")
	}
	most, err := item.Max.Parse(prefix+"max", lim.Max, 0, lim.AtMost)
	if err != nil {
		return nil, err
	}
	own, err := lim.WithNumbers(lim.Window, most)
	if bad, ok := errors.AsType[*limit.FieldError](err); ok {
		return nil, web.BadInput(prefix+"max", "%s", bad.Message)
	}
	if err == nil && item.Starts != "" {
		if own.Period == nil {
			return nil, web.BadInput(prefix+"starts", "the window of %s is of no calendar: leave it out", lim.Name)
		}
		if own.Period, err = own.Period.Starting(string(item.Starts)); err != nil {
			return nil, web.BadInput(prefix+"starts", "%v", err)
		}
	}
	out := *lim
	out.Limit = *own
	return &out, err
}

// startDay is the day that periods start on, as a request gives it: 17, "17" or "sunday".
type startDay string

// UnmarshalJSON keeps a text or a number as it is written.
func (d *startDay) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = string(data)
	}
	*d = startDay(text)
	return nil
}

// MarshalJSON writes the number of an example.
func (d startDay) MarshalJSON() ([]byte, error) { return []byte(d), nil }

// Hint is what a day can be.
func (startDay) Hint() string { return "1 to 31, or monday to sunday" }

// Schema describes both forms.
func (startDay) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, Examples: []any{"17"}}, {Type: huma.TypeInteger, Examples: []any{17}},
	}}
}

// policyName is a policy that counts hits in a window.
type policyName string

// Hint lists the policies.
func (policyName) Hint() string { return limit.Or(limit.Policies()) }

// Schema describes the policies.
func (policyName) Schema(huma.Registry) *huma.Schema { return enumOf(limit.Policies()) }

// namedPolicy is a policy of a named limit.
type namedPolicy string

// Schema describes the policies.
func (namedPolicy) Schema(huma.Registry) *huma.Schema { return enumOf(limit.NamedPolicies()) }

func enumOf(all []limit.Policy) *huma.Schema {
	out := &huma.Schema{Type: huma.TypeString}
	for _, policy := range all {
		out.Enum = append(out.Enum, string(policy))
	}
	return out
}

const (
	failHint    = "local, open or closed"
	addressHint = "an address, such as 203.0.113.7 or 2001:db8::1"
)

func (i *takeItem) numbers() []field {
	return []field{{name: "window", text: i.Window}, {name: "policy", text: string(i.Policy)},
		{name: "max", text: string(i.Max)}, {name: "starts", text: string(i.Starts)}}
}

func limitWindow(prefix, text string) (time.Duration, error) {
	if text == "" {
		return 0, web.BadInput(prefix+"window", "missing: must be %s", api.WindowHint)
	}
	return api.ParseDuration(prefix+"window", text)
}

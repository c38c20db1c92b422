package access

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/yamlfile"
)

// grant is a token's entry in the file.
type grant struct {
	name     string
	hash     [sha256.Size]byte
	may      []Right
	prefixes []string  // in order, none within another; empty: of any counter
	limits   []string  // names of limits, or a name, limitEnd and a prefix of keys; nil: of any, or without prefixes
	until    time.Time // zero: for ever
}

func (g grant) equal(other grant) bool {
	return g.name == other.name && g.hash == other.hash && slices.Equal(g.may, other.may) &&
		slices.Equal(g.prefixes, other.prefixes) && slices.Equal(g.limits, other.limits) && g.until.Equal(other.until)
}

const (
	// maxTokens bounds the file: each request is compared with every token, in at most 0.1 ms.
	maxTokens = 1000
	// maxPrefixes bounds one token's prefixes: a list asks Redis about each of them.
	maxPrefixes = 100
	// maxLimits bounds one token's limits: a take is compared with each of them.
	maxLimits   = 100
	limitEnd    = ":" // is in no limit's name
	tokenFields = "name, sha256 and may, and optionally prefixes, limits and until"
)

var tokenName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// tokenLimit is a limit's name, which takes with numbers of their own have not, and perhaps a prefix of keys.
var tokenLimit = regexp.MustCompile(`^([A-Za-z0-9_.-]{1,64}|[A-Za-z0-9_.-]{0,64}:.{1,512})$`)

var tokenForm = yamlfile.Form{
	{Name: "name", Required: true, Schema: yamlfile.Matching(tokenName.String()),
		Doc: "1 to 64 letters, digits, underscores, hyphens and dots"},
	{Name: "sha256", Required: true, Schema: yamlfile.Matching("^[0-9A-Fa-f]{64}$"),
		Doc: "of the token, in hexadecimal: the file holds no secret"},
	{Name: "may[]", Required: true, Schema: yamlfile.List(yamlfile.Schema{"enum": allRights}, len(allRights)),
		Doc: "what it may be used for"},
	{Name: "prefixes[]", Schema: yamlfile.List(yamlfile.Text, maxPrefixes),
		Doc: "only for counters that begin so; default all"},
	{Name: "limits[]", Schema: yamlfile.List(yamlfile.Matching(tokenLimit.String()), maxLimits),
		Doc: "only for these limits, such as login, or api:shop. for keys that begin so; with prefixes default none"},
	{Name: "until", Schema: yamlfile.Matching(`^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt].+)?$`),
		Doc: "the end: when this day begins in UTC, or an RFC 3339 time; default never"},
}

// Schema is the JSON Schema of a file of tokens.
func Schema() yamlfile.Schema {
	tokens := yamlfile.List(tokenForm.Schema(), maxTokens)
	return yamlfile.Form{{Name: "tokens", Required: true, Schema: tokens}}.Schema()
}

// parse reads a file of tokens, each with the fields of tokenForm:
//
//	tokens:
//	  - {name: shop, sha256: 2c26…, may: [read, take], prefixes: ["shop."], until: 2027-01-01}
//
// The error is a *yamlfile.Error. It quotes nothing that may be a token.
func parse(data []byte) ([]grant, error) {
	document, err := yamlfile.Document(data, "a list of tokens under tokens:")
	if err != nil {
		return nil, err
	}
	top, err := yamlfile.SecretFields(document, "the file", "tokens")
	if err != nil {
		return nil, err
	}
	entries := top["tokens"]
	if entries == nil || entries.Kind != yaml.SequenceNode || len(entries.Content) == 0 {
		return nil, yamlfile.Errorf(document.Line, "tokens: missing, empty or not a list: must be a list of tokens, "+
			"each with %s", tokenFields)
	}
	if n := len(entries.Content); n > maxTokens {
		return nil, yamlfile.Errorf(entries.Content[maxTokens].Line, "the file has %d tokens: at most %d are allowed",
			n, maxTokens)
	}
	names, hashes := make(map[string]int), make(map[[sha256.Size]byte]int)
	out := make([]grant, len(entries.Content))
	for i, node := range entries.Content {
		g, err := parseGrant(node)
		if err != nil {
			return nil, err
		}
		if line := names[g.name]; line > 0 {
			return nil, yamlfile.Errorf(node.Line, "name: %q is the name of the token on line %d, too", g.name, line)
		}
		if line := hashes[g.hash]; line > 0 {
			return nil, yamlfile.Errorf(node.Line, "sha256: the token on line %d is the same: write one entry "+
				"per token", line)
		}
		names[g.name], hashes[g.hash], out[i] = node.Line, node.Line, g
	}
	return out, nil
}

func parseGrant(node *yaml.Node) (g grant, err error) {
	fields, err := tokenForm.ReadSecret(node, "a token")
	if err != nil {
		return g, err
	}
	wrong := func(field, format string, args ...any) (grant, error) {
		return grant{}, yamlfile.Errorf(fields[field].Line, field+": "+format, args...)
	}
	g.name = fields["name"].Value
	if !tokenName.MatchString(g.name) {
		return wrong("name", "must be 1 to 64 letters, digits, underscores, hyphens "+
			"and dots") // it may be a token in the wrong place
	}
	hash, err := hex.DecodeString(fields["sha256"].Value)
	if err != nil || len(hash) != sha256.Size {
		return wrong("sha256", "must be the 64 hexadecimal digits of the token's SHA-256: printf %%s TOKEN | sha256sum")
	}
	g.hash = [sha256.Size]byte(hash)
	for _, text := range yamlfile.Values(fields["may"]) {
		if !slices.Contains(allRights, Right(text)) {
			return wrong("may", "must be a list of some of %s", list(allRights))
		}
		g.may = append(g.may, Right(text))
	}
	g.prefixes, err = plainPrefixes(yamlfile.Values(fields["prefixes"]))
	if err != nil {
		return wrong("prefixes", "%v", err)
	}
	g.limits = yamlfile.Values(fields["limits"])
	for _, text := range g.limits {
		if !tokenLimit.MatchString(text) || len(g.limits) > maxLimits {
			return wrong("limits", "must be at most %d names of limits, each perhaps with a colon and what keys begin "+
				"with, such as api:shop.", maxLimits)
		}
	}
	if until := fields["until"]; until != nil {
		g.until, err = parseMoment(until.Value)
		if err != nil {
			return wrong("until", "must be a day, such as 2027-01-01, or an RFC 3339 time, such as "+
				"2027-01-01T12:00:00Z")
		}
	}
	return g, nil
}

func plainPrefixes(given []string) (out []string, err error) {
	if len(given) > maxPrefixes {
		return nil, fmt.Errorf("there are %d: at most %d are allowed", len(given), maxPrefixes)
	}
	for _, p := range given {
		if err := hit.CheckName([]byte(p)); err != nil {
			return nil, fmt.Errorf("no counter's name begins with one of them: %v", err)
		}
	}
	slices.Sort(given)
	for _, p := range given {
		if len(out) == 0 || !strings.HasPrefix(p, out[len(out)-1]) {
			out = append(out, p)
		}
	}
	return out, nil
}

func parseMoment(text string) (time.Time, error) {
	at, err := time.Parse(time.DateOnly, text)
	if err != nil {
		at, err = hit.ParseRFC3339(text)
	}
	return at.UTC(), err
}

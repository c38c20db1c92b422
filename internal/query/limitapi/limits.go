package limitapi

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
)

// limits are the named limits, and which takes are counted.
type limits struct {
	mode   TakeMode
	now    func() time.Time
	named  *setting.File[limitfile.Set]      // nil without named limits
	usages atomic.Pointer[map[string]*usage] // of the named ones
}

// newLimits reads the file of named limits. Its error names the setting, the file and the line.
func newLimits(mode TakeMode, file string, files *setting.Files) (*limits, error) {
	out := &limits{mode: mode, now: time.Now}
	out.setLimits(nil)
	var err error
	out.named, err = setting.Open(files, "limits", setting.Path{Key: "QUERY_LIMITS_FILE", File: file}, limitfile.Parse,
		func(set limitfile.Set, line *zerolog.Event) {
			out.setLimits(set)
			line.Int("limits", len(set))
		})
	return out, err
}

// setLimits makes usages for the named limits. A limit that stays keeps its usage.
func (l *limits) setLimits(set limitfile.Set) {
	usages, before := make(map[string]*usage, len(set)), l.usages.Load()
	for name := range set {
		if before != nil {
			usages[name] = (*before)[name]
		}
		if usages[name] == nil {
			usages[name] = &usage{since: l.now()}
		}
	}
	l.usages.Store(&usages)
}

// count counts a decision. Takes with the request's own numbers, or under a removed limit, have no usage.
func (l *limits) count(name string, o outcome, now time.Time) {
	if use := (*l.usages.Load())[name]; use != nil {
		use.add(o, now)
	}
}

// servesTakes reports whether takes are served, and whether some of them can be decided without Redis.
func (l *limits) servesTakes() (takes, withoutRedis bool) {
	takes, withoutRedis = l.countsTakes(), l.mode == TakeAny // whose limits are local then
	for _, lim := range l.named.Load() {
		withoutRedis = withoutRedis || lim.Fail != limit.FailClosed
	}
	return takes, takes && withoutRedis
}

// maxNamesListed bounds the limits in the error about an unknown one.
const maxNamesListed = 20

// lookup returns a named limit that the token is about, and tells it of no other. param is its name in the
// request.
func (l *limits) lookup(token *access.Token, name, param string) (*limitfile.Limit, error) {
	if err := token.CheckLimit(name); err != nil {
		return nil, err
	}
	set := l.named.Load()
	if found := set[name]; found != nil {
		return found, nil
	}
	if len(set) == 0 {
		return nil, web.BadInput(param, "%s is unknown: QUERY_LIMITS_FILE names no limit", web.Excerpt(name))
	}
	names := slices.Sorted(maps.Keys(set))
	more := ""
	if len(names) > maxNamesListed {
		more = fmt.Sprintf(" and %d more", len(names)-maxNamesListed)
		names = names[:maxNamesListed]
	}
	return nil, web.BadInput(param, "%s is unknown: must be one of %s%s", web.Excerpt(name), strings.Join(names, ", "),
		more)
}

func (l *limits) countsTakes() bool {
	return l.mode == TakeAny || l.mode == TakeNamed && len(l.named.Load()) > 0
}

// checkCounting refuses a request that would count if the settings forbid that.
func (l *limits) checkCounting() error {
	if l.mode == TakeOff {
		return web.NewProblem(http.StatusForbidden, "this service counts no takes (QUERY_TAKE=off): look at a limit "+
			"with GET /v1/limit").OfKind(web.TakesOff)
	}
	return nil
}

// TakeMode selects the takes that the service counts; the zero value is TakeNamed.
type TakeMode int

const (
	// TakeNamed counts takes of limits that QUERY_LIMITS_FILE names.
	TakeNamed TakeMode = iota
	// TakeAny also counts takes with their own numbers, so a client can create any number of keys in Redis.
	TakeAny
	// TakeOff counts none.
	TakeOff
)

func (m *TakeMode) UnmarshalText(text []byte) error {
	i := slices.Index([]string{TakeNamed: "named", TakeAny: "any", TakeOff: "off"}, string(text))
	if i < 0 {
		return errors.New("named, any or off")
	}
	*m = TakeMode(i)
	return nil
}

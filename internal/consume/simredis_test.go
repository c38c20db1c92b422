package consume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tallyroll/internal/platform/wait"
	"tallyroll/internal/window/schema"
)

// simRedis is a model of one Redis server: the commands that the program uses,
// WATCH, expiry by the virtual clock, and a history that it can fall back in.
// Requests are executed where they are written, or by serve, so a round trip starts no goroutine.
type simRedis struct {
	mu       sync.Mutex
	keys     map[string]*simEntry
	versions map[string]uint64 // of keys, for WATCH
	undo     []simUndo
	commits  []int    // for each change of the data: how long undo was before it
	changes  int      // of keys, ever
	claims   []string // all that were ever written
	conns    map[*simConn]bool
	latency  time.Duration // of a request and of its reply, each
	arrivals []simArrival  // by moment
	arrival  *time.Timer   // the next one
	closed   chan struct{}

	// The append-only file, see simtorn_test.go.
	piece     [][]string                         // the beginning of a transaction, which the next start but one runs
	tornAt    time.Time                          // when it was torn
	followed  bool                               // by a whole transaction
	rewritten bool                               // since the start
	rewrites  bool                               // a client may have it rewritten
	tornMark  int                                // how long undo was before the piece
	since     []simSince                         // what the file has after the piece
	running   int                                // a command runs
	loading   bool                               // what the file has is run again: nothing expires, and folds have their former values
	placesOf  func(log, field string) []simField // of a log's cell: the fields of the tiers' hashes (name: key, value: field)
	keepBytes int                                // of what a fold keeps

	// The clock.
	ahead   time.Duration
	shown   int64                            // the latest moment that it has shown before it fell, Unix milliseconds
	aheadTo map[*simProcess]map[string]int64 // the latest moment that commits of a shard have read, if the clock was ahead

	// Erasures, see simerase_test.go.
	erasures    int                     // transactions
	checkErased func(counters []string) // whether anything is left

	// Faults.
	away      bool
	slowShard string // a hash tag such as {1}; empty for none
	slowBy    time.Duration
	lookFault map[*simProcess]simLookFault // of the process's next look for a commit of hits
	execFault map[*simProcess]simExecFault // of the process's next transaction that adds hits
	unheard   map[string]bool              // foreign keys to which a transaction wrote, and no process has read so
}

// simEntry is a value. It is never changed in place, so that undo can keep it.
type simEntry struct {
	text    string
	fields  []simField // of a hash, or the members of a sorted set
	expires int64      // Unix milliseconds; 0 for never
	// torn is what a torn transaction has added, by field.
	torn map[string]simTorn
	// displaced is what a foreign value has replaced; see writeForeign.
	displaced *simEntry
}

type simField struct{ name, value string }

type simUndo struct {
	key string
	was *simEntry // nil where there was none
}

// simLookFault happens before a command of a check, because a server need not read a pipeline in one piece.
type simLookFault struct {
	kind  string // look held up, look cut
	first int    // commands that are executed before
	delay time.Duration
}

type simExecFault struct {
	kind    string // cut before, lost reply, late reply, late request, torn file
	delay   time.Duration
	written int // of a torn transaction, see tear
}

func newSimRedis() *simRedis {
	r := &simRedis{
		arrival: time.NewTimer(0), closed: make(chan struct{}),
		keys: map[string]*simEntry{}, versions: map[string]uint64{}, conns: map[*simConn]bool{},
		lookFault: map[*simProcess]simLookFault{}, execFault: map[*simProcess]simExecFault{}, unheard: map[string]bool{},
	}
	go r.serve()
	return r
}

// simArrival is when a request arrives that is on its way.
type simArrival struct {
	at   time.Time
	conn *simConn
}

func (r *simRedis) expect(a simArrival) {
	i := len(r.arrivals)
	for i > 0 && (a.at.Before(r.arrivals[i-1].at) || a.at.Equal(r.arrivals[i-1].at) && rand.IntN(2) == 0) {
		i--
	}
	if r.arrivals = slices.Insert(r.arrivals, i, a); i == 0 {
		r.arrival.Reset(time.Until(a.at))
	}
}

// recordAhead notes that a commit reads a clock that is ahead.
func (r *simRedis) recordAhead(c *simConn) {
	if r.aheadTo == nil {
		r.aheadTo = map[*simProcess]map[string]int64{}
	}
	if r.aheadTo[c.process] == nil {
		r.aheadTo[c.process] = map[string]int64{}
	}
	for key := range c.watched {
		shard, _, _ := strings.Cut(key, "}")
		r.aheadTo[c.process][shard+"}"] = max(r.aheadTo[c.process][shard+"}"], c.shown)
	}
}

// serve lets requests arrive when it is time.
func (r *simRedis) serve() {
	for {
		select {
		case <-r.closed:
			return
		case <-r.arrival.C:
		}
		r.mu.Lock()
		for len(r.arrivals) > 0 && !r.arrivals[0].at.After(time.Now()) {
			c := r.arrivals[0].conn
			r.arrivals = r.arrivals[1:]
			c.next()
		}
		if len(r.arrivals) > 0 {
			r.arrival.Reset(time.Until(r.arrivals[0].at))
		}
		r.mu.Unlock()
	}
}

// client is a production client that dials the model on behalf of a process.
func (r *simRedis) client(options *redis.Options, p *simProcess) *redis.Client {
	options.Protocol, options.DisableIdentity = 2, true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	options.ReadBufferSize, options.WriteBufferSize = 1<<10, 4<<10 // allocated for every schedule
	options.PipelineReadBufferSize, options.PipelineWriteBufferSize = 1<<10, 4<<10
	options.DialerRetries = 1 // each waits 100 ms
	options.OnConnect = schema.RewriteTorn(func(error) {})
	options.Dialer = func(_ context.Context, _, _ string) (net.Conn, error) {
		p.wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.away || p.dead.Load() {
			return nil, errors.New("simulated: connection refused")
		}
		c := &simConn{redis: r, process: p, readable: wait.NewSignal(), wakes: time.NewTimer(0)}
		r.conns[c] = true
		return c, nil
	}
	return redis.NewClient(options)
}

// now is what the server's clock shows, in Unix milliseconds.
func (r *simRedis) now() int64 { return time.Now().Add(r.ahead).UnixMilli() }

// latest is the latest moment that the clock has shown: what was to expire before it may have done so.
func (r *simRedis) latest() int64 { return max(r.now(), r.shown) }

// setAhead sets the clock ahead for a while.
func (r *simRedis) setAhead(by, during time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ahead = max(r.ahead, by)
	time.AfterFunc(during, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.shown, r.ahead = r.latest(), 0
	})
}

func (r *simRedis) get(key string) *simEntry {
	e := r.keys[key]
	if e != nil && e.expires != 0 && r.now() >= e.expires && !r.loading {
		r.put(key, nil)
		if r.running > 0 {
			r.note(simSince{key: key})
		}
		return nil
	}
	return e
}

// put sets or (nil) deletes a key.
func (r *simRedis) put(key string, e *simEntry) {
	was := r.keys[key]
	if was == nil && e == nil {
		return
	}
	if r.running == 0 {
		r.note(simSince{key: key, entry: e})
	}
	r.undo = append(r.undo, simUndo{key, was})
	r.versions[key]++
	r.changes++
	if e == nil {
		delete(r.keys, key)
	} else {
		r.keys[key] = e
	}
}

// rollBack makes the data what it was n changes ago and cuts all connections:
// a server that lost its last writes has been started again. Where claims stay, they are on another server.
func (r *simRedis) rollBack(n int, claimsStay bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, len(r.commits))
	if n == 0 {
		return
	}
	if claims := r.get(simClaims); claimsStay {
		defer func() { r.change(simClaims, claims) }()
	}
	r.piece, r.rewritten = nil, false // the file is an older one
	mark := r.commits[len(r.commits)-n]
	for len(r.undo) > mark {
		last := r.undo[len(r.undo)-1]
		r.undo = r.undo[:len(r.undo)-1]
		r.versions[last.key]++
		r.changes++
		if last.was == nil {
			delete(r.keys, last.key)
		} else {
			r.keys[last.key] = last.was
		}
	}
	r.commits = r.commits[:len(r.commits)-n]
	r.cutAll(nil)
}

// atOnce lets requests take no time until the function that it returns is called.
func (r *simRedis) atOnce() (restore func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	latency, slow := r.latency, r.slowShard
	r.latency, r.slowShard = 0, ""
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.latency, r.slowShard = latency, slow
	}
}

func (r *simRedis) flushAll(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.piece = nil
	r.commits = append(r.commits, len(r.undo))
	for _, key := range sortedKeys(r.keys) {
		r.put(key, nil)
	}
	if cut {
		r.cutAll(nil)
	}
}

// expireCursors does what a worker does to the cursors of a stream that it takes for gone.
func (r *simRedis) expireCursors(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mark := len(r.undo)
	for _, key := range sortedKeys(r.keys) {
		if e := r.get(key); e != nil && !e.isForeign() && strings.Contains(key, "}:cursor:") {
			r.put(key, &simEntry{text: e.text, fields: e.fields, expires: r.now() + after.Milliseconds()})
		}
	}
	r.committed(mark)
}

// cutAll cuts the connections of a process, or (nil) all. Requests on the way are lost.
func (r *simRedis) cutAll(p *simProcess) {
	for c := range r.conns {
		if p == nil || c.process == p {
			c.cut()
		}
	}
}

// simConn is a connection to the model.
type simConn struct {
	redis   *simRedis
	process *simProcess

	// Under redis.mu.
	in       string    // written, of a command that is not complete yet
	arriving [][]byte  // on the way to the server
	arrives  time.Time // when the last of them does
	blocked  bool      // the server has not got beyond a late request
	out      []simReply
	outAt    time.Time
	closed   bool // by the client
	broken   bool // by the server
	deadline time.Time
	multi    bool
	tells    []string // of the next reply
	shown    int64    // what a clock that was ahead has shown in a check, Unix milliseconds; 0 for none
	queued   [][]string
	watched  map[string]uint64
	readable wait.Signal // something has happened to the connection
	wakes    *time.Timer // the reader, when the next reply is there or its timeout ends
}

type simReply struct {
	at    time.Time
	data  []byte
	tells []string // foreign keys of which it shows that they are
}

func (c *simConn) cut() {
	c.broken, c.arriving, c.in = true, nil, ""
	delete(c.redis.conns, c)
	c.readable.Give()
}

func (c *simConn) Write(b []byte) (int, error) {
	c.process.wait()
	r := c.redis
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	if c.broken || c.process.dead.Load() {
		return 0, io.ErrClosedPipe
	}
	delay := r.latency
	if r.slowShard != "" && bytes.Contains(b, []byte(r.slowShard)) {
		delay += r.slowBy
	}
	if delay == 0 && len(c.arriving) == 0 && !c.blocked {
		c.arrive(b)
		return len(b), nil
	}
	c.arriving = append(c.arriving, bytes.Clone(b))
	if at := time.Now().Add(delay); at.After(c.arrives) {
		c.arrives = at
	}
	r.expect(simArrival{c.arrives, c})
	return len(b), nil
}

// next lets the oldest request arrive. The caller holds redis.mu.
func (c *simConn) next() {
	if len(c.arriving) > 0 && !c.blocked {
		b := c.arriving[0]
		c.arriving = c.arriving[1:]
		c.arrive(b)
	}
}

func (c *simConn) arrive(b []byte) {
	text := c.in + string(b) // the arguments are parts of it
	for !c.broken && !c.blocked {
		args, rest := parseCommand(text)
		if args == nil {
			break
		}
		text = rest
		c.command(args)
	}
	if c.in = ""; !c.broken {
		c.in = text
	}
}

func (c *simConn) command(args []string) {
	r := c.redis
	if fault, ok := r.lookFault[c.process]; ok && c.looks(args) {
		if fault.first > 0 {
			fault.first--
			r.lookFault[c.process] = fault
		} else {
			delete(r.lookFault, c.process)
			if fault.kind == "look cut" {
				c.cut()
			} else {
				c.hold(args, fault.delay)
			}
			return
		}
	}
	if strings.EqualFold(args[0], "exec") && c.counts() {
		fault, ok := r.execFault[c.process]
		delete(r.execFault, c.process)
		switch {
		case !ok:
		case fault.kind == "cut before":
			c.cut()
			return
		case fault.kind == "torn file":
			r.tear(c.queued, fault.written)
			return
		case fault.kind == "late request":
			c.hold(args, fault.delay)
			return
		case fault.kind == "late reply":
			c.reply(args, fault.delay)
			return
		default: // lost reply
			c.do(args, nil)
			c.cut()
			return
		}
	}
	c.reply(args, 0)
}

// hold lets a command and what follows it on the connection wait.
func (c *simConn) hold(args []string, delay time.Duration) {
	c.blocked = true
	time.AfterFunc(delay, func() {
		c.redis.mu.Lock()
		defer c.redis.mu.Unlock()
		if c.blocked = false; !c.broken {
			c.reply(args, 0)
			late := bytes.Join(c.arriving, nil)
			c.arriving = nil
			c.arrive(late)
		}
	})
}

// looks reports whether a command is one of those that a commit of hits begins with: the last of them read
// summaries.
func (c *simConn) looks(args []string) bool {
	if c.multi || strings.EqualFold(args[0], "multi") {
		return false
	}
	return strings.Contains(args[len(args)-1], "}:top:") || strings.Contains(c.in, "}:top:")
}

// counts reports whether the transaction adds hits, or removes counters.
func (c *simConn) counts() bool {
	return slices.ContainsFunc(c.queued, func(q []string) bool {
		return strings.EqualFold(q[0], "unlink") || strings.EqualFold(q[0], "append") || strings.EqualFold(q[0], "hincrby") && !strings.Contains(q[1], "}:cursor:") // each transaction counts itself there
	})
}

// reply executes a command, and sends its reply after the delay.
func (c *simConn) reply(args []string, delay time.Duration) {
	if at := time.Now().Add(delay + c.redis.latency); at.After(c.outAt) {
		c.outAt = at
	}
	if last := len(c.out) - 1; last >= 0 && c.out[last].at.Equal(c.outAt) {
		c.out[last].data = c.do(args, c.out[last].data)
		c.out[last].tells = append(c.out[last].tells, c.tells...)
	} else {
		data := c.do(args, nil) // which sets tells
		c.out = append(c.out, simReply{c.outAt, data, c.tells})
		c.wakes.Reset(time.Until(earlier(c.deadline, c.out[0].at)))
	}
}

// earlier is the earlier one of two moments; the first may be zero for never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

func (c *simConn) Read(b []byte) (int, error) {
	for {
		c.process.wait()
		c.redis.mu.Lock()
		now := time.Now()
		until := c.deadline
		switch {
		case c.closed:
			c.redis.mu.Unlock()
			return 0, net.ErrClosed
		case len(c.out) > 0 && !c.out[0].at.After(now):
			n := 0
			for len(c.out) > 0 && !c.out[0].at.After(now) && n < len(b) {
				moved := copy(b[n:], c.out[0].data)
				n += moved
				if c.out[0].data = c.out[0].data[moved:]; len(c.out[0].data) == 0 {
					for _, key := range c.out[0].tells {
						delete(c.redis.unheard, key)
					}
					c.out = c.out[1:]
				}
			}
			c.redis.mu.Unlock()
			return n, nil
		case c.broken || c.process.dead.Load():
			c.redis.mu.Unlock()
			return 0, io.EOF
		case !c.deadline.IsZero() && !c.deadline.After(now):
			c.redis.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(c.out) > 0:
			until = earlier(until, c.out[0].at)
		}
		if c.wakes.Stop(); !until.IsZero() {
			c.wakes.Reset(until.Sub(now))
		}
		c.redis.mu.Unlock()
		select {
		case <-c.readable:
		case <-c.wakes.C:
		}
	}
}

// Close leaves what is on the way on its way: the server reads it before it
// sees the end of the connection.
func (c *simConn) Close() error {
	c.redis.mu.Lock()
	defer c.redis.mu.Unlock()
	c.closed = true
	if len(c.arriving) == 0 && !c.blocked {
		delete(c.redis.conns, c)
	}
	c.readable.Give()
	return nil
}

func (c *simConn) SetReadDeadline(t time.Time) error {
	c.redis.mu.Lock()
	defer c.redis.mu.Unlock()
	c.deadline = t
	return nil
}

func (c *simConn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *simConn) SetWriteDeadline(time.Time) error { return nil } // writes never wait
func (c *simConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *simConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// parseCommand takes one command off; nil where it is not complete.
func parseCommand(b string) (args []string, rest string) {
	at := 0
	number := func(kind byte) (n int, ok bool) {
		if at >= len(b) {
			return 0, false
		}
		if b[at] != kind {
			panic(fmt.Sprintf("simulated Redis: %q where %c was expected", b[at:], kind))
		}
		for at++; at < len(b); at++ {
			if b[at] == '\r' {
				at += len("\r\n")
				return n, at <= len(b)
			}
			n = 10*n + int(b[at]-'0')
		}
		return 0, false
	}
	count, ok := number('*')
	if !ok {
		return nil, ""
	}
	args = make([]string, count)
	for i := range args {
		size, ok := number('$')
		if !ok || len(b) < at+size+2 {
			return nil, ""
		}
		args[i], at = b[at:at+size], at+size+2
	}
	return args, b[at:]
}

func appendBulk(out []byte, s string) []byte {
	out = strconv.AppendInt(append(out, '$'), int64(len(s)), 10)
	return append(append(append(out, "\r\n"...), s...), "\r\n"...)
}

// appendArray begins a reply of n values.
func appendArray(out []byte, n int) []byte {
	return append(strconv.AppendInt(append(out, '*'), int64(n), 10), "\r\n"...)
}

func appendInteger(out []byte, n int64) []byte {
	return append(strconv.AppendInt(append(out, ':'), n, 10), "\r\n"...)
}

const (
	okReply   = "+OK\r\n"
	nilReply  = "$-1\r\n"
	queuedOne = "+QUEUED\r\n"
	wrongType = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
)

// do executes a command of a connection, and appends its reply.
func (c *simConn) do(args []string, out []byte) []byte {
	r := c.redis
	c.tells = nil
	name := strings.ToLower(args[0])
	switch name {
	case "getrange":
		if !c.multi {
			c.tells = []string{args[1]}
		}
	case "watch":
		for _, key := range args[1:] {
			if c.watched == nil {
				c.watched = map[string]uint64{}
			}
			if _, ok := c.watched[key]; !ok {
				r.get(key) // if it has expired, it is gone already
				c.watched[key] = r.versions[key]
			}
		}
		return append(out, okReply...)
	case "unwatch":
		c.watched = nil
		return append(out, okReply...)
	case "time":
		if c.shown = 0; r.ahead > 0 && !c.multi {
			c.shown = r.now()
		}
	case "multi":
		if c.shown > 0 { // it has got the reply
			r.recordAhead(c)
		}
		c.multi = true
		return append(out, okReply...)
	case "discard":
		c.multi, c.queued, c.watched = false, nil, nil
		return append(out, okReply...)
	case "exec":
		queued, watched := c.queued, c.watched
		c.multi, c.queued, c.watched = false, nil, nil
		for key, version := range watched {
			r.get(key) // a watched key that has expired since has changed
			if r.versions[key] != version {
				return append(out, "*-1\r\n"...)
			}
		}
		r.followed = r.followed || len(queued) > 0
		mark := len(r.undo)
		out = appendArray(out, len(queued))
		for _, q := range queued {
			if len(q) > 1 && r.get(q[1]).isForeign() {
				r.unheard[q[1]] = true
			}
			before := len(out)
			// A string in place of a log is no error, but the length that APPEND returns is not the log's.
			if out = r.run(q, out); out[before] == '-' || q[0] == "append" && r.get(q[1]).isForeign() {
				c.tells = append(c.tells, q[1])
			}
		}
		r.erasing(queued)
		r.committed(mark)
		return out
	}
	if c.multi {
		c.queued = append(c.queued, args)
		return append(out, queuedOne...)
	}
	mark := len(r.undo)
	out = r.run(args, out)
	r.committed(mark)
	return out
}

func (r *simRedis) committed(mark int) {
	if len(r.undo) > mark {
		r.commits = append(r.commits, mark)
	}
}

// run executes a command on the data, and appends its reply.
func (r *simRedis) run(args []string, out []byte) []byte {
	r.running++
	out = r.execute(args, out)
	r.running--
	r.note(simSince{args: args})
	return out
}

func (r *simRedis) execute(args []string, out []byte) []byte {
	var e *simEntry
	if len(args) > 1 {
		e = r.get(args[1])
	}
	name := strings.ToLower(args[0])
	var fields []simField
	if e != nil {
		fields = e.fields
	}
	switch name {
	case "get":
		if fields != nil {
			return append(out, wrongType...)
		}
	case "hset", "hget", "hmget", "hkeys", "hdel", "hgetall", "hvals", "hincrby", "zadd", "zrem", "zscore", "zlexcount", "zrangebylex":
		if e != nil && fields == nil {
			return append(out, wrongType...)
		}
	case "pfadd":
		if e.isForeign() {
			return append(out, wrongType...)
		}
		return appendInteger(out, r.pfadd(args[1], args[2:]))
	case "append":
		if e != nil && fields != nil {
			return append(out, wrongType...)
		}
		changed := &simEntry{text: args[2]}
		if e != nil {
			*changed = *e
			changed.text += args[2]
		}
		r.put(args[1], changed)
		return appendInteger(out, int64(len(changed.text)))
	case "getrange": // of a log, or of a HyperLogLog, from the beginning
		last, err := strconv.Atoi(args[3])
		switch {
		case err != nil:
			panic(err)
		case e == nil:
			return appendBulk(out, "")
		case strings.Contains(args[1], "}:s:") && fields != nil:
			return append(out, wrongType...)
		case fields != nil:
			return appendBulk(out, simHeader)
		case last < 0 || last >= len(e.text):
			return appendBulk(out, e.text)
		}
		return appendBulk(out, e.text[:last+1])
	}
	switch name {
	case "ping":
		return append(out, "+PONG\r\n"...)
	case "hello":
		return appendArray(out, 0)
	case "info":
		return appendBulk(out, r.persistence())
	case "bgrewriteaof":
		return append(out, r.rewrite()...)
	case "time":
		now := time.Now().Add(r.ahead)
		out = appendBulk(appendArray(out, 2), strconv.FormatInt(now.Unix(), 10))
		return appendBulk(out, strconv.Itoa(now.Nanosecond()/1000))
	case "get":
		if e == nil {
			return append(out, nilReply...)
		}
		return appendBulk(out, e.text)
	case "strlen":
		if e != nil && fields != nil {
			return append(out, wrongType...)
		}
		if e == nil {
			return appendInteger(out, 0)
		}
		return appendInteger(out, int64(len(e.text)))
	case "exists":
		n := int64(0)
		for _, key := range args[1:] {
			if r.get(key) != nil {
				n++
			}
		}
		return appendInteger(out, n)
	case "mget":
		out = appendArray(out, len(args)-1)
		for _, key := range args[1:] {
			if e := r.get(key); e != nil && e.fields == nil {
				out = appendBulk(out, e.text)
			} else {
				out = append(out, nilReply...)
			}
		}
		return out
	case "zadd": // all of the same score: a set in order
		added, changed := int64(0), e.copy()
		for i := 3; i < len(args); i += 2 {
			if changed.set(args[i], "0") {
				added++
			}
		}
		if added > 0 {
			slices.SortFunc(changed.fields, func(a, b simField) int { return strings.Compare(a.name, b.name) })
			r.put(args[1], changed)
		}
		return appendInteger(out, added)
	case "zscore":
		if _, ok := e.value(args[2]); ok {
			return appendBulk(out, "0")
		}
		return append(out, nilReply...)
	case "zrem":
		if e == nil {
			return appendInteger(out, 0)
		}
		changed := e.copy()
		changed.fields = slices.DeleteFunc(changed.fields, func(f simField) bool { return slices.Contains(args[2:], f.name) })
		removed := int64(len(e.fields) - len(changed.fields))
		if len(changed.fields) == 0 {
			changed = nil
		}
		if removed > 0 {
			r.put(args[1], changed)
		}
		return appendInteger(out, removed)
	case "unlink":
		return appendInteger(out, r.unlink(args[1:]))
	case "del":
		r.put(args[1], nil)
		return appendInteger(out, int64(map[bool]int{true: 1}[e != nil]))
	case "set", "setnx":
		if len(args) == 6 { // key header NX EXAT seconds
			if e != nil {
				return append(out, nilReply...)
			}
			at, err := strconv.ParseInt(args[5], 10, 64)
			if err != nil {
				panic(err)
			}
			r.put(args[1], &simEntry{text: args[2], expires: at * 1000}) // even if that is past: the next command finds it expired
			return append(out, okReply...)
		}
		if len(args) == 3 && strings.EqualFold(args[0], "set") {
			r.put(args[1], &simEntry{text: args[2]})
			return append(out, okReply...)
		}
		if len(args) == 5 && strings.EqualFold(args[3], "exat") {
			at, err := strconv.ParseInt(args[4], 10, 64)
			if err != nil {
				panic(err)
			}
			changed := &simEntry{text: args[2], expires: at * 1000}
			if strings.Contains(args[1], "}:s:") {
				r.moveTorn(args[1], e, changed)
			}
			if at*1000 <= r.now() && !r.loading {
				r.put(args[1], nil)
			} else {
				r.put(args[1], changed)
			}
			return append(out, okReply...)
		}
		nx := strings.EqualFold(args[0], "setnx") || len(args) == 4 && strings.EqualFold(args[3], "nx")
		if !nx {
			panic(fmt.Sprintf("simulated Redis: %q", args))
		}
		if e == nil {
			r.put(args[1], &simEntry{text: args[2]})
		}
		if strings.EqualFold(args[0], "set") && e != nil {
			return append(out, nilReply...)
		}
		if strings.EqualFold(args[0], "set") {
			return append(out, okReply...)
		}
		return appendInteger(out, int64(map[bool]int{true: 1}[e == nil]))
	case "expire":
		seconds, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil || e == nil {
			panic(fmt.Sprintf("simulated Redis: %q", args))
		}
		changed := *e // the fields are the same
		changed.expires = r.now() + 1000*seconds
		r.put(args[1], &changed)
		return appendInteger(out, 1)
	case "hset":
		if args[1] == simClaims {
			r.claims = append(r.claims, args[3])
		}
		added, changed := int64(0), e.copy()
		if r.loading && changed.torn != nil && strings.Contains(args[1], "}:h:") {
			changed.torn = maps.Clone(changed.torn)
		}
		for i := 2; i < len(args); i += 2 {
			if changed.set(args[i], args[i+1]) {
				added++
			}
			if r.loading && strings.Contains(args[1], "}:h:") {
				delete(changed.torn, args[i]) // its value is from before the piece was run
			}
		}
		r.put(args[1], changed)
		return appendInteger(out, added)
	case "hget":
		if value, ok := e.value(args[2]); ok {
			return appendBulk(out, value)
		}
		return append(out, nilReply...)
	case "hmget":
		out = appendArray(out, len(args)-2)
		for _, field := range args[2:] {
			if value, ok := e.value(field); ok {
				out = appendBulk(out, value)
			} else {
				out = append(out, nilReply...)
			}
		}
		return out
	case "hgetall":
		out = appendArray(out, 2*len(fields))
		for _, f := range fields {
			out = appendBulk(appendBulk(out, f.name), f.value)
		}
		return out
	case "hvals":
		out = appendArray(out, len(fields))
		for _, f := range fields {
			out = appendBulk(out, f.value)
		}
		return out
	case "hkeys":
		out = appendArray(out, len(fields))
		for _, f := range fields {
			out = appendBulk(out, f.name)
		}
		return out
	case "hincrby":
		have := e.number(args[2])
		by, err := strconv.ParseInt(args[3], 10, 64)
		if err != nil {
			panic(err)
		}
		changed := e.copy()
		changed.set(args[2], strconv.FormatInt(have+by, 10))
		r.put(args[1], changed)
		return appendInteger(out, have+by)
	case "zlexcount": // [min (max
		n := int64(0)
		for _, f := range fields {
			if f.name >= args[2][1:] && f.name < args[3][1:] {
				n++
			}
		}
		return appendInteger(out, n)
	case "zrangebylex": // [min or (min, (max, LIMIT 0 n
		var found []simField
		most, err := strconv.Atoi(args[6])
		if err != nil {
			panic(err)
		}
		for _, f := range fields {
			above := f.name > args[2][1:] || f.name == args[2][1:] && args[2][0] == '['
			if above && f.name < args[3][1:] && len(found) < most {
				found = append(found, f)
			}
		}
		out = appendArray(out, len(found))
		for _, f := range found {
			out = appendBulk(out, f.name)
		}
		return out
	case "persist":
		if e == nil || e.expires == 0 {
			return appendInteger(out, 0)
		}
		changed := *e // the fields are the same
		changed.expires = 0
		r.put(args[1], &changed)
		return appendInteger(out, 1)
	case "expireat":
		at, err := strconv.ParseInt(args[2], 10, 64)
		switch {
		case err != nil:
			panic(err)
		case e == nil:
			return appendInteger(out, 0)
		case at*1000 <= r.now() && !r.loading:
			r.put(args[1], nil)
		default:
			changed := *e // the fields are the same
			changed.expires = at * 1000
			r.put(args[1], &changed)
		}
		return appendInteger(out, 1)
	}
	return append(out, "-ERR unknown command '"+args[0]+"'\r\n"...)
}

// copy is an entry to be changed and put.
func (e *simEntry) copy() *simEntry {
	if e == nil {
		return &simEntry{}
	}
	out := *e
	out.fields = append(make([]simField, 0, len(e.fields)+1), e.fields...)
	return &out
}

func (e *simEntry) value(field string) (string, bool) {
	if e != nil {
		for _, f := range e.fields {
			if f.name == field {
				return f.value, true
			}
		}
	}
	return "", false
}

// number is the value of a field; 0 if it has none, or no number.
func (e *simEntry) number(field string) int64 {
	value, ok := e.value(field)
	if !ok {
		return 0 // at once: the error of a missing number costs as much as everything else here
	}
	n, _ := strconv.ParseInt(value, 10, 64)
	return n
}

// set sets a field of an entry that is not put yet, and reports whether it is new.
func (e *simEntry) set(field, value string) bool {
	for i := range e.fields {
		if e.fields[i].name == field {
			e.fields[i].value = value
			return false
		}
	}
	e.fields = append(e.fields, simField{field, value})
	return true
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/outbox"
	"tallyroll/internal/rejects"
)

const (
	// pollEvery is how often the log is looked at. Lines that come meanwhile share a message.
	pollEvery = 100 * time.Millisecond
	// lookEvery is the pause between looks for the stream, and sayEvery how often a standstill is logged.
	lookEvery = 250 * time.Millisecond
	sayEvery  = 5 * time.Second
	// rotateWait is how long a file must be quiet once its name is another file's: servers write to it until
	// they are told to open the log again.
	rotateWait = 5 * time.Second
	// lookAfter is how long after its last message the stream is looked at before the next one.
	lookAfter = time.Minute
	// followRoom is kept free in the largest message for the headers.
	followRoom = 512
)

// follower publishes the lines of a log that grows and is rotated.
//
// All messages of a log go to one subject, one after the other. Each says which one must be the last there
// (Nats-Expected-Last-Subject-Sequence), so the stream itself refuses a message whose lines it may have, whoever
// sends it and after whatever pause. The id of each message is the place of its lines in the log. So whoever is
// refused reads there how far the log is stored, and goes on behind it.
//
// One goroutine owns it.
type follower struct {
	log       zerolog.Logger
	conn      *nats.Conn
	js        jetstream.JetStream
	pub       *outbox.Sender
	fates     chan outbox.Fate
	out       *boot.Bar
	namespace string // whose rejects are counted

	file  *stateFile
	state *followState
	dirty bool // state is not saved

	files  rotations
	now    *logFile // nil: the log is not there yet
	waits  time.Duration
	quiet  time.Time // since when the file has been quiet, if the log's name is another file's
	moved  bool      // the log tells that its name is another file's
	absent bool      // the log warns that the file is not there
	cut    bool      // the file that was read last has been truncated: what is in it now is not what was read

	parse func([]byte) (hit.Hit, error)
	most  int // hits in a message
	room  int // bytes in a message
	names distinctNames
	bad   badLines
	tally tally
	asked time.Time // when the stream was last looked at, or stored a message
	said  time.Time // when a standstill was last logged
}

// lines are those of a message, or those up to a place that are no hits.
type lines struct {
	body []byte
	hits int
	to   int64
	bad  badLines
	full bool  // there are more
	err  error // what comes after them cannot be read
}

// runFollow is the program with --follow.
func runFollow(ctx context.Context, env *settings, opts options, stdout, stderr io.Writer) (err error) {
	path, err := filepath.Abs(opts.follow)
	if err != nil {
		return err
	}
	file, state, err := openState(opts.state, path, opts.subject)
	if err != nil {
		return err
	}
	defer file.close()
	out := boot.NewBar(stderr, "hits")
	log := env.Log.New(out.Screen)
	conn, err := env.NATS.Connect(ctx, "tallyroll publish", log, outbox.ConnOptions()...)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := env.NATS.JetStream(conn)
	if err != nil {
		return fmt.Errorf("JetStream: %w", err)
	}
	f := &follower{
		log: log, conn: conn, js: js, namespace: env.Namespace, out: out, file: file, state: state,
		files: newRotations(path), waits: rotateWait, parse: opts.parser(), most: int(opts.batch),
	}
	f.names.limit, f.names.ask = opts.names, asker(ctx, stderr)
	rep, err := f.follow(ctx)
	out.End()
	return boot.PrintLast(stdout, rep, err)
}

// follow publishes until ctx ends, and then waits up to grace for what is under way.
func (f *follower) follow(ctx context.Context) (report, error) {
	acks, giveUp := boot.Outlive(ctx, grace)
	defer giveUp()
	start := time.Now()
	f.room = int(f.conn.MaxPayload()) - followRoom
	f.fates = make(chan outbox.Fate, 1)      // one message is under way at a time
	stored := published{shown: func(int) {}} // passed shows them
	f.pub = outbox.Start(acks, f.conn, f.log, f.state.Subject, stored.add)
	err := ended(ctx, f.read(ctx, acks))
	if f.now != nil {
		f.now.Close()
	}
	err = errors.Join(err, f.save())
	cause := f.pub.Close()
	rep := report{tally: f.tally, took: time.Since(start), bad: f.bad, names: int64(len(f.names.seen))}
	if f.tally.messages > 0 {
		rep.rejects = rejects.Ask(ctx, f.js, f.namespace, &stored.places)
	}
	if cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err == nil && f.state.Sent != nil {
		err = fmt.Errorf("interrupted: the last message is not acknowledged within %v: start it again, none of its lines counts twice", grace)
	}
	return rep, err
}

// read reads the log until ctx ends.
func (f *follower) read(ctx, acks context.Context) error {
	if err := f.reconcile(ctx, false); err != nil {
		return err
	}
	for ctx.Err() == nil {
		moved, err := f.step(acks)
		if err != nil {
			return err
		}
		if moved {
			continue
		}
		if err := f.save(); err != nil {
			return err
		}
		f.pause(ctx, pollEvery)
	}
	return ctx.Err()
}

// step publishes the next lines, or goes on to the next file. moved is false if there is nothing to do yet.
func (f *follower) step(acks context.Context) (moved bool, err error) {
	if f.now == nil {
		return f.open()
	}
	next, err := f.gather(false)
	if err != nil {
		return false, err
	}
	replaced, err := f.now.replaced(f.state.Read) // after the reading: what was read then is what follows
	if err != nil {
		return false, err
	}
	if replaced {
		f.log.Warn().Msgf("%s has been truncated: it had been read up to byte %d", f.now.Name(), f.state.Read.Offset)
		f.now.Close()
		f.now, f.cut = nil, true
		return true, nil
	}
	if next.to > f.state.Read.Offset || next.err != nil {
		f.quiet = time.Time{}
		return next.full, errors.Join(f.store(acks, next), next.err)
	}
	info, err := os.Stat(f.files.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // its successor is still to come
	}
	if err != nil {
		return false, err
	}
	if device, inode := inodeOf(info); device == f.now.device && inode == f.now.inode {
		f.quiet = time.Time{}
		return false, nil
	}
	if f.quiet.IsZero() {
		f.quiet = time.Now()
		if !f.moved {
			f.log.Info().Msgf("%s is another file now: reads the one before until it has been quiet for %v", f.files.path, f.waits)
		}
		f.moved = true
	}
	if time.Since(f.quiet) < f.waits {
		return false, nil
	}
	// Nobody ends a line any more that has no end.
	if next, err = f.gather(true); err != nil {
		return false, err
	}
	if next.to > f.state.Read.Offset || next.err != nil {
		return true, errors.Join(f.store(acks, next), next.err)
	}
	if info, err = f.now.Stat(); err != nil {
		return false, err
	}
	return f.goOn(info.ModTime())
}

// open opens the file that has been read last, or the one that follows.
func (f *follower) open() (moved bool, err error) {
	read := f.state.Read
	if !read.At.IsZero() {
		f.now, err = f.files.find(read, f.cut)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if f.now != nil {
			f.log.Info().Msgf("reads %s from byte %d", f.now.Name(), read.Offset)
			f.cut = false
			return true, f.place(f.now, read.Offset)
		}
		if !f.absent {
			f.log.Warn().Msgf("the file that had been read up to byte %d at %s is gone: if more was in it, that is not counted",
				read.Offset, read.At.Format(time.RFC3339))
		}
	}
	return f.goOn(read.At)
}

// goOn goes on to the file that follows what had been read of until then. It waits if there is none.
func (f *follower) goOn(since time.Time) (moved bool, err error) {
	var next *logFile
	var unread []string
	if since.IsZero() { // what was rotated before the first start is not counted
		next, err = openLog(f.files.path, 0)
	} else {
		next, unread, err = f.files.next(since, f.state.Read.File)
	}
	if errors.Is(err, fs.ErrNotExist) { // or it has been renamed just now
		if !f.absent {
			f.log.Info().Msgf("waits for %s, which is not there", f.files.path)
		}
		f.absent = true
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, path := range unread {
		f.log.Error().Msgf("%s was compressed before it was read: its lines are not counted; to count them: zcat %s | publish", path, path)
	}
	if f.now != nil {
		f.now.Close()
	}
	f.now, f.quiet, f.moved, f.absent, f.cut = next, time.Time{}, false, false, false
	f.log.Info().Msgf("reads %s from the beginning", next.Name())
	return true, f.place(next, 0)
}

// place notes that a file has been read up to there.
func (f *follower) place(l *logFile, offset int64) (err error) {
	if f.state.Read, err = l.at(offset); err != nil {
		return err
	}
	f.dirty = true
	return f.save()
}

// gather takes the lines of the next message. With last, a line without a line end is one, too.
func (f *follower) gather(last bool) (next lines, err error) {
	next.to = f.state.Read.Offset
	for {
		if next.hits == f.most {
			next.full = true
			return next, nil
		}
		start := f.now.offset()
		line, long, ok, err := f.now.line()
		if !ok && err == nil && last {
			line, long, ok = f.now.last()
		}
		if err != nil || !ok {
			return next, err
		}
		if start == 0 {
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		taken, err := f.take(&next, line, long, start)
		if !taken {
			f.now.seek(start)
			next.full, next.err = true, err
			return next, nil
		}
		next.to = f.now.offset()
	}
}

// take adds a line. It returns false if the line has to wait for the next message, or why it cannot be taken at all.
func (f *follower) take(next *lines, line []byte, long bool, start int64) (taken bool, err error) {
	var h hit.Hit
	switch {
	case long:
		err = errLongLine
	case hit.Blank(line):
		return true, nil
	default:
		h, err = f.parse(line)
	}
	if err != nil {
		next.bad.add(1, 0, fmt.Errorf("at byte %d of %s: %w", start, f.now.Name(), err))
		return true, nil
	}
	var many errNames
	if err := f.names.add(h.Counter); errors.As(err, &many) {
		return false, fmt.Errorf("stopped before byte %d of %s: %w: %s", start, f.now.Name(), many, many.advice("from there (start it again)"))
	}
	before := len(next.body)
	if before > 0 {
		next.body = append(next.body, '\n')
	}
	next.body = h.AppendJSON(next.body)
	if len(next.body) > f.room && before > 0 {
		next.body = next.body[:before]
		return false, nil
	}
	next.hits++
	return true, nil
}

// store publishes lines and waits until the stream has them.
func (f *follower) store(ctx context.Context, next lines) error {
	to, err := f.now.at(next.to)
	if err != nil {
		return err
	}
	if next.hits == 0 {
		f.passed(next, to, 0)
		return nil
	}
	if time.Since(f.asked) > lookAfter { // so that it is known from where on the message can be
		if moved, err := f.settled(ctx, true); moved || err != nil {
			return err
		}
	}
	for certain := true; ; {
		f.state.Sent, f.dirty = &to, true
		if err := f.save(); err != nil {
			return err
		}
		m := outbox.NewMessage()
		m.Body, m.Hits = append(m.Body, next.body...), next.hits
		m.Once = &outbox.Once{
			Subject: f.state.Subject, ID: f.state.id(to), After: f.state.Sequence, Settled: func(what outbox.Fate) { f.fates <- what },
		}
		if err := f.pub.Submit(m); err != nil {
			return err
		}
		var got outbox.Fate
		select {
		case got = <-f.fates:
		case <-f.pub.Done():
			return f.pub.Err()
		}
		switch {
		case got.Stored:
			f.state.Stream, f.state.Sequence, f.state.Since = got.Stream, got.Seq, got.Seq
			f.asked = time.Now()
			f.passed(next, to, next.hits)
			return nil
		case got.Code == outbox.CodeTooLarge:
			f.state.Sent = nil
			return fmt.Errorf("publish %d hits in %d bytes on %s: %w: lower --batch", next.hits, len(next.body), f.state.Subject, got.Refusal)
		}
		certain = certain && got.Refused
		moved, err := f.settled(ctx, certain)
		if err != nil {
			return err
		}
		if moved {
			if f.state.Read.same(to) && f.state.Sequence > 0 {
				f.passed(next, to, next.hits) // an earlier send of it was stored
			}
			return nil
		}
	}
}

// passed notes that lines are stored, or are no hits.
func (f *follower) passed(next lines, to position, hits int) {
	f.state.Read, f.state.Sent, f.dirty = to, nil, true
	f.bad.add(next.bad.count, next.bad.first, next.bad.reason)
	if hits > 0 {
		f.tally.hits += int64(hits)
		f.tally.messages++
		f.out.Add(hits)
	}
}

// settled looks at the stream, and goes to the place up to which it has the log. It reports whether that is
// another one.
func (f *follower) settled(ctx context.Context, certain bool) (moved bool, err error) {
	before := f.state.Read
	if err := f.reconcile(ctx, certain); err != nil {
		return false, err
	}
	if f.state.Read.same(before) {
		return false, nil
	}
	if at := f.state.Read; at.File.Device == f.now.device && at.File.Inode == f.now.inode {
		f.now.seek(at.Offset)
		return true, nil
	}
	f.now.Close()
	f.now = nil
	return true, nil
}

// reconcile finds out from the stream how far the log is stored. certain is true if a message that was sent is
// certainly not stored.
func (f *follower) reconcile(ctx context.Context, certain bool) error {
	info, last, id, err := f.look(ctx)
	if err != nil {
		return err
	}
	s := f.state
	same := s.in(info)
	switch {
	case last == 0:
		// The stream discards the oldest first. If it still has what came behind Since, it never had the message.
		if s.Sent != nil && !certain && !(same && info.State.FirstSeq <= s.Since+1) {
			f.log.Error().Msgf("lines from byte %d to %d may be stored or not: stream %s does not go back to when they were sent; they are left out, so that none counts twice",
				s.Read.Offset, s.Sent.Offset, info.Config.Name)
			s.Read = *s.Sent
		}
	case same && last == s.Sequence:
	case same && last < s.Sequence:
		f.log.Warn().Msgf("stream %s has lost messages that it had acknowledged: the last one on %s is %d, and was %d",
			info.Config.Name, s.Subject, last, s.Sequence)
	default:
		at, ok := s.position(id)
		if !ok {
			return fmt.Errorf("message %d of stream %s on %s is not from publish --follow: nothing else may publish there", last, info.Config.Name, s.Subject)
		}
		s.Read = at
	}
	s.Stream, s.Created, s.Sequence, s.Since, s.Sent = info.Config.Name, info.Created, last, max(last, info.State.LastSeq), nil
	f.asked, f.dirty = time.Now(), true
	return nil
}

// in reports whether it is the stream that had the messages before.
func (s *followState) in(info *jetstream.StreamInfo) bool {
	return s.Stream == info.Config.Name && s.Created.Equal(info.Created)
}

// look waits for the stream. It returns the last message of the subject, with its id if it is new to the state,
// and what the stream was before that.
func (f *follower) look(ctx context.Context) (info *jetstream.StreamInfo, last uint64, id string, err error) {
	for {
		info, last, id, err = f.ask(ctx)
		switch {
		case err == nil:
			return info, last, id, nil
		case ctx.Err() != nil:
			return nil, 0, "", ctx.Err()
		case errors.Is(err, outbox.ErrMayNot), errors.Is(err, outbox.ErrProbeKept):
			return nil, 0, "", fmt.Errorf("ask for the stream of %s: %w", f.state.Subject, err)
		}
		if time.Since(f.said) >= sayEvery {
			f.said = time.Now()
			f.log.Warn().Msgf("no stream tells of %s (%v): is ingest running? It waits.", f.state.Subject, err)
		}
		f.pause(ctx, lookEvery)
	}
}

var errOtherStream = errors.New("another stream takes it from now on")

func (f *follower) ask(ctx context.Context) (info *jetstream.StreamInfo, last uint64, id string, err error) {
	name, _, err := outbox.Last(ctx, f.conn, f.state.Subject)
	if err != nil {
		return nil, 0, "", err
	}
	stream, err := f.js.Stream(ctx, name)
	if err != nil {
		return nil, 0, "", err
	}
	info = stream.CachedInfo()
	again, last, err := outbox.Last(ctx, f.conn, f.state.Subject)
	if err != nil || again != name {
		return nil, 0, "", cmp.Or(err, errOtherStream)
	}
	if last == 0 || f.state.in(info) && last <= f.state.Sequence {
		return info, last, "", nil
	}
	m, err := stream.GetMsg(ctx, last)
	if err != nil {
		return nil, 0, "", fmt.Errorf("read message %d of stream %s: %w", last, name, err)
	}
	return info, last, m.Header.Get(nats.MsgIdHdr), nil
}

func (f *follower) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (f *follower) save() error {
	if !f.dirty {
		return nil
	}
	f.dirty = false
	return f.file.save(f.state)
}

// id is that of the message with the lines up to a place. It has the message before it as well: a file that was
// truncated can have the same lines at the same place again.
func (s *followState) id(to position) string {
	return fmt.Sprintf("%s:%d:%x:%x:%d:%s:%d:%d:%d", s.Source, s.Sequence, to.File.Device, to.File.Inode, to.File.Head, to.File.Sum,
		s.Read.Offset, to.Offset, to.At.UnixMilli())
}

// position is the place up to which the message with an id goes.
func (s *followState) position(id string) (to position, ok bool) {
	parts := strings.Split(id, ":")
	if len(parts) != 9 || parts[0] != s.Source {
		return to, false
	}
	var err error
	number := func(i, base int) uint64 {
		n, parseErr := strconv.ParseUint(parts[i], base, 63)
		err = errors.Join(err, parseErr)
		return n
	}
	to.File = fileID{Inode: number(3, 16), Head: int(number(4, 10)), Sum: parts[5]}
	device, deviceErr := strconv.ParseUint(parts[2], 16, 64)
	to.File.Device, to.Offset, to.At = device, int64(number(7, 10)), time.UnixMilli(int64(number(8, 10))).UTC()
	return to, errors.Join(err, deviceErr) == nil
}

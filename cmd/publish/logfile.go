package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// fileID tells a log file from others. A name moves on when the log is rotated. An inode is given to another
// file when this one is removed, and a copy has another one. So the file's first bytes are a part of it.
type fileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Head   int    `json:"head"` // how many first bytes Sum is of: those that have been read, up to headSize
	Sum    string `json:"sum"`
}

// headSize is how many first bytes tell files apart: some lines of an access log, each with its time.
const headSize = 1024

// position is how far a log has been read: up to Offset of File, which was the log at that time.
type position struct {
	File   fileID    `json:"file"`
	Offset int64     `json:"offset"`
	At     time.Time `json:"at"` // when it was read up to there
}

func (p position) same(as position) bool { return p.File == as.File && p.Offset == as.Offset }

// sumOf is the checksum of the first n bytes.
func sumOf(f io.ReaderAt, n int) (string, error) {
	head := make([]byte, n)
	if _, err := f.ReadAt(head, 0); err != nil {
		return "", err
	}
	sum := sha256.Sum256(head)
	return hex.EncodeToString(sum[:8]), nil
}

// beginsLike reports whether the file's first bytes are those of the other. What has not been read of has none.
func (id fileID) beginsLike(f io.ReaderAt) (bool, error) {
	if id.Head == 0 {
		return true, nil
	}
	sum, err := sumOf(f, id.Head)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return sum == id.Sum, err
}

// logFile is a file of the log that is being read. The name may be another file's by now.
type logFile struct {
	*os.File
	device, inode uint64
	base          int64  // the offset of buf
	buf           []byte // what has been read of the file and not all been taken
	taken         int    // of buf
	long          bool   // buf begins within a line that is longer than maxLine
	start         int64  // where that line begins
}

// openLog opens a file to be read from the offset on.
func openLog(path string, offset int64) (*logFile, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() { // to open a pipe would wait
		err = fmt.Errorf("%s is no regular file: --follow reads nothing else", path)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err != nil {
		f.Close()
		return nil, err
	}
	l := &logFile{File: f, base: offset}
	l.device, l.inode = inodeOf(info)
	return l, nil
}

// offset is where the next line begins.
func (l *logFile) offset() int64 {
	if l.long {
		return l.start
	}
	return l.base + int64(l.taken)
}

// at is the position at an offset.
func (l *logFile) at(offset int64) (position, error) {
	id := fileID{Device: l.device, Inode: l.inode, Head: int(min(offset, headSize))}
	var err error
	id.Sum, err = sumOf(l, id.Head)
	return position{File: id, Offset: offset, At: time.Now().UTC().Truncate(time.Millisecond)}, err
}

// seek goes to an offset.
func (l *logFile) seek(offset int64) {
	l.base, l.buf, l.taken, l.long = offset, l.buf[:0], 0, false
}

// line returns the next line that has its line end, without it. ok is false if there is none yet: a line that is
// half written waits. A line that is longer than maxLine is cut.
func (l *logFile) line() (line []byte, long, ok bool, err error) {
	for {
		if i := bytes.IndexByte(l.buf[l.taken:], '\n'); i >= 0 {
			line = l.buf[l.taken : l.taken+i]
			l.taken += i + 1
			long, l.long = l.long, false
			line = bytes.TrimSuffix(line, []byte{'\r'})
			return line, long || len(line) > maxLine, true, nil
		}
		if rest := len(l.buf) - l.taken; rest > maxLine+1 { // one more for a carriage return
			if !l.long {
				l.long, l.start = true, l.base+int64(l.taken)
			}
			l.taken = len(l.buf)
		}
		l.base += int64(l.taken)
		l.buf = l.buf[:copy(l.buf, l.buf[l.taken:])]
		l.taken = 0
		l.buf = slices.Grow(l.buf, chunkSize)
		n, err := l.ReadAt(l.buf[len(l.buf):len(l.buf)+chunkSize], l.base+int64(len(l.buf)))
		l.buf = l.buf[:len(l.buf)+n]
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, false, false, err
		}
		if n == 0 {
			return nil, false, false, nil
		}
	}
}

// last returns what stands behind the last line end of a file to which nothing is written any more.
func (l *logFile) last() (line []byte, long, ok bool) {
	line = bytes.TrimSuffix(l.buf[l.taken:], []byte{'\r'})
	long, ok = l.long, l.long || len(line) > 0
	l.taken, l.long = len(l.buf), false
	return line, long || len(line) > maxLine, ok
}

// replaced reports whether what had been read of the file is no longer there: it was truncated, and may have
// grown again since.
func (l *logFile) replaced(read position) (bool, error) {
	info, err := l.Stat()
	if err != nil {
		return false, err
	}
	if info.Size() < l.base+int64(len(l.buf)) {
		return true, nil
	}
	same, err := read.File.beginsLike(l)
	return !same, err
}

// rotations finds the files of a log: the one that has its name, and those to which it was rotated.
type rotations struct {
	path string
	name *regexp.Regexp
}

// newRotations matches the names that logrotate gives: a number (access.log.1) or a date (access.log-20261121,
// access-20261121.log), and those of a compressed file. A number before the ending (access-1.log) may be that
// of another log.
func newRotations(path string) rotations {
	name := filepath.Base(path)
	end := filepath.Ext(name)
	begin := strings.TrimSuffix(name, end)
	const (
		number = `[.-][0-9][0-9._-]*`
		date   = `[.-][0-9]{4}[0-9._-]{4,}`
	)
	return rotations{path, regexp.MustCompile(`^(` + regexp.QuoteMeta(name) + number + `|` +
		regexp.QuoteMeta(begin) + date + regexp.QuoteMeta(end) + `)(\.(gz|xz|zst|bz2|lz4|Z))?$`)}
}

// rotated is a file of the log that has another name.
type rotated struct {
	path          string
	device, inode uint64
	size          int64
	changed       time.Time
	known         bool // its name is one that logrotate gives
	compressed    bool
}

// open opens the file, or returns fs.ErrNotExist if another one has its name by now.
func (f rotated) open(offset int64) (*logFile, error) {
	l, err := openLog(f.path, offset)
	if err == nil && (l.device != f.device || l.inode != f.inode) {
		l.Close()
		return nil, fs.ErrNotExist
	}
	return l, err
}

// list returns the files of the log's directory, those that were written to first first.
func (r rotations) list() ([]rotated, error) {
	entries, err := os.ReadDir(filepath.Dir(r.path))
	if err != nil {
		return nil, err
	}
	var found []rotated
	for _, e := range entries {
		path := filepath.Join(filepath.Dir(r.path), e.Name())
		info, err := os.Stat(path) // the log itself may be a symbolic link
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue
		}
		if err != nil {
			return nil, err
		}
		f := rotated{path: path, size: info.Size(), changed: info.ModTime()}
		f.device, f.inode = inodeOf(info)
		if match := r.name.FindStringSubmatch(e.Name()); match != nil && path != r.path {
			f.known, f.compressed = true, match[2] != ""
		}
		found = append(found, f)
	}
	slices.SortStableFunc(found, func(a, b rotated) int { return a.changed.Compare(b.changed) })
	return found, nil
}

// find opens the file of a position, whatever its name is by now: the file itself, or else a copy of it
// (copytruncate, or another device number after a restart). It returns nil if there is neither, and
// fs.ErrNotExist if the files are being renamed. With cut the file itself was truncated, so that only a copy will do.
func (r rotations) find(at position, cut bool) (*logFile, error) {
	files, err := r.list()
	if err != nil {
		return nil, err
	}
	for _, copies := range []bool{false, true} {
		for _, f := range files {
			itself := f.device == at.File.Device && f.inode == at.File.Inode
			mayCopy := at.File.Head > 0 && (f.known || f.path == r.path)
			if itself && cut || itself == copies || copies && !mayCopy || f.size < at.Offset {
				continue
			}
			l, err := f.open(at.Offset)
			if err != nil {
				return nil, err
			}
			same, err := at.File.beginsLike(l)
			if err == nil && same {
				return l, nil
			}
			l.Close()
			if err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// next opens the file that follows: the first one that was rotated and has been written to since, or else the
// one that has the log's name. unread are compressed files between. It returns fs.ErrNotExist if there is none, or
// if the files are being renamed.
func (r rotations) next(since time.Time, done fileID) (l *logFile, unread []string, err error) {
	files, err := r.list()
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		if !f.known || !f.changed.After(since) || f.device == done.Device && f.inode == done.Inode {
			continue
		}
		if f.compressed {
			unread = append(unread, f.path)
			continue
		}
		l, err := f.open(0)
		return l, unread, err
	}
	for _, f := range files {
		if f.path == r.path {
			l, err := f.open(0)
			return l, unread, err
		}
	}
	return nil, nil, fs.ErrNotExist
}

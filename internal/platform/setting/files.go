package setting

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/platform/systemd"
)

// Files are the files that a program rereads when they change, and at SIGHUP. An unusable file changes
// nothing. Each reload is logged in one line, and counted.
type Files struct {
	log     zerolog.Logger
	counted func(what string) func(error)
	all     []reloader
}

// NewFiles calls counted once per File, and what it returns with the outcome of each reload.
func NewFiles(log zerolog.Logger, counted func(what string) func(error)) *Files {
	return &Files{log: log, counted: counted}
}

// UseCertificate is UseCertificate with the log of the files.
func (f *Files) UseCertificate(key string, certificate tls.Certificate) {
	UseCertificate(key, certificate, f.log)
}

type reloader interface {
	check()
	reload(from string)
}

const filesEvery = time.Second

// Follow checks the files until ctx ends, and rereads all of them at each signal. It rereads a changed file
// only after two equal checks, because its writer may still be writing it, or about to replace another file.
func (f *Files) Follow(ctx context.Context, signals <-chan os.Signal) error {
	ticker := time.NewTicker(filesEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			for _, file := range f.all {
				file.check()
			}
		case <-signals:
			systemd.Reload(f.Reload)
		}
	}
}

// Reload rereads all files, as at a signal. It must not run concurrently with Follow.
func (f *Files) Reload() {
	if len(f.all) == 0 {
		f.log.Info().Msg("nothing to reload: no setting names a file that is read again")
	}
	for _, file := range f.all {
		file.reload("SIGHUP")
	}
}

// Path is a setting that names a file.
type Path struct {
	Key  string `env:"-"`
	File string `env:"-"`
}

func (s *Path) SetKey(key string) { s.Key = key }

func (s *Path) UnmarshalText(text []byte) error {
	s.File = string(text)
	return nil
}

const maxFile = 4 << 20 // bytes

// Read returns the file's content. Its error has the file's name, unless that name is itself the content.
func (s Path) Read() ([]byte, error) {
	text, err := readBounded(s.File)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", s.Key, Conceal(s.File, err.Error()))
	}
	return text, nil
}

func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes, which is the most that it may have", path, maxFile)
	}
	return text, err
}

// Mistake is an error about the file's content.
func (s Path) Mistake(err error) error { return fmt.Errorf("%s: %s: %w", s.Key, s.File, err) }

// File holds the last usable value of a file, or of several that belong together.
type File[T any] struct {
	what    string // names it in the log and in metrics
	files   []Path
	parse   func(texts [][]byte) (T, error)
	use     func(value T, line *zerolog.Event)
	log     zerolog.Logger
	counted func(error)
	value   atomic.Pointer[T]

	// Checksums of the content: that of value, that of the last reload, and that of the last check. Only
	// Follow's goroutine uses them.
	used, read, checked [sha256.Size]byte
}

// Open reads the file of a setting; nil if the setting is empty. use, which may be nil, is called with each
// value once Load returns it, and adds to its log line. The error is a UsageError that names the setting and
// the file.
func Open[T any](files *Files, what string, setting Path, parse func(text []byte) (T, error),
	use func(value T, line *zerolog.Event)) (*File[T], error) {
	if setting.File == "" {
		return nil, nil
	}
	parseOne := func(texts [][]byte) (T, error) {
		value, err := parse(texts[0])
		if err != nil {
			err = setting.Mistake(err)
		}
		return value, err
	}
	return OpenAll(files, what, []Path{setting}, parseOne, use)
}

// OpenAll is Open for several files, all of which must be set, in their order.
func OpenAll[T any](files *Files, what string, settings []Path, parse func(texts [][]byte) (T, error),
	use func(value T, line *zerolog.Event)) (*File[T], error) {
	f := &File[T]{what: what, files: settings, parse: parse, use: use, log: files.log}
	texts, sum, err := f.readAll()
	if err == nil {
		err = f.load(texts, sum, f.log.Info(), " read")
	}
	if err != nil {
		return nil, UsageError{Err: err}
	}
	f.read, f.checked, f.counted = sum, sum, files.counted(what)
	files.all = append(files.all, f)
	return f, nil
}

// Load returns the value in use; the zero value of a nil File.
func (f *File[T]) Load() (value T) {
	if f == nil {
		return value
	}
	return *f.value.Load()
}

// readAll returns the files' contents and a checksum that differs for any other content or failure.
func (f *File[T]) readAll() (texts [][]byte, sum [sha256.Size]byte, err error) {
	all := sha256.New()
	for _, file := range f.files {
		text, failure := file.Read()
		if failure != nil && err == nil {
			err = failure
		}
		texts = append(texts, text)
		fmt.Fprintf(all, "%x %v\n", sha256.Sum256(text), failure)
	}
	return texts, [sha256.Size]byte(all.Sum(nil)), err
}

// load parses the content and, if that succeeds, makes it the value in use.
func (f *File[T]) load(texts [][]byte, sum [sha256.Size]byte, line *zerolog.Event, message string) error {
	value, err := f.parse(texts)
	if err != nil {
		return err
	}
	f.value.Store(&value)
	f.used = sum
	if f.use != nil {
		f.use(value, line)
	}
	line.Str("file", f.files[0].File).Msg(f.what + message)
	return nil
}

func (f *File[T]) check() {
	before := f.checked
	_, f.checked, _ = f.readAll()
	if f.checked == before && f.checked != f.read {
		f.reload("file")
	}
}

func (f *File[T]) reload(from string) {
	before := f.read
	texts, sum, err := f.readAll()
	f.read = sum
	if sum == f.used && before == f.used {
		f.log.Info().Str("from", from).Str("file", f.files[0].File).Msg("nothing to reload: " + f.what + " unchanged")
		return
	}
	if err == nil {
		err = f.load(texts, sum, f.log.Info().Bool("audit", true).Str("from", from), " reloaded")
	}
	if err != nil {
		f.log.Error().Bool("audit", true).Str("from", from).Err(err).Msg(f.what + " not reloaded: what was read " +
			"before stays in use")
	}
	f.counted(err)
}

// Reloadable is a value that is reloaded for each use, because its files may be replaced while the program
// runs. If they cannot be used, the previous value stays in use.
type Reloadable[T any] struct {
	what string // names the files, for the log
	load func() (T, error)
	log  zerolog.Logger

	mu      sync.Mutex
	value   T
	loaded  bool   // whether there is a value
	failure string // of the last load, so that it is logged once
}

// NewReloadable loads a value for the first time. what names its files in the log.
func NewReloadable[T any](what string, log zerolog.Logger, load func() (T, error)) *Reloadable[T] {
	k := &Reloadable[T]{what: what, load: load, log: log}
	_, _ = k.Get() // the next one returns the error
	return k
}

// Get reloads the value. It fails only if no load has ever succeeded.
func (k *Reloadable[T]) Get() (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, err := k.load()
	if err == nil {
		k.value, k.loaded = value, true
	}
	switch {
	case !k.loaded:
		return k.value, err
	case err != nil && err.Error() != k.failure:
		k.failure = err.Error()
		k.log.Error().Err(err).Msg(k.what + " not read again: what was read before stays in use")
	case err == nil && k.failure != "":
		k.failure = ""
		k.log.Info().Msg(k.what + " read again")
	}
	return k.value, nil
}

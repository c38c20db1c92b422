package setting

import (
	"sync"

	"github.com/rs/zerolog"
)

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

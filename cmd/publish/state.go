package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"tallyroll/internal/boot"
)

// followState is what the state file of --follow holds. The stream knows better how far the log has been read:
// each message says it. The file remembers it for when the stream no longer holds the last one.
type followState struct {
	Version int    `json:"version"`
	Log     string `json:"log"`     // its path
	Source  string `json:"source"`  // a name of its own: a part of the subject
	Subject string `json:"subject"` // of all its messages

	Read position `json:"read"` // everything before it is stored, or was no hit

	Stream   string    `json:"stream"`   // that takes the subject
	Created  time.Time `json:"created"`  // when that stream was made
	Sequence uint64    `json:"sequence"` // of the last message; 0: the stream holds none
	Since    uint64    `json:"since"`    // a message that follows is behind this one in the stream

	// Sent is how far the message goes that was sent, or was about to be. It is written before the message goes.
	Sent *position `json:"sent,omitempty"`
}

const stateVersion = 1

// stateFile is the file, with a lock on another one beside it: each write replaces the file.
type stateFile struct {
	path  string
	locks *os.File
}

// openState locks the state and reads it, or begins one.
func openState(path, log, subject string) (f *stateFile, state *followState, err error) {
	locks, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("the state of --follow: %w", err)
	}
	defer func() {
		if err != nil {
			locks.Close()
		}
	}()
	f = &stateFile{path, locks}
	if err := lock(locks); err != nil {
		return nil, nil, fmt.Errorf("--state %s is locked (%w): another publish follows with it; stop that one, or follow another log with another state", path, err)
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		source := strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36)
		return f, &followState{Version: stateVersion, Log: log, Source: source, Subject: subject + ".follow-" + source}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the state of --follow: %w", err)
	}
	state = &followState{}
	err = json.Unmarshal(text, state)
	switch {
	case err != nil || state.Version != stateVersion || state.Source == "" || state.Subject == "":
		return nil, nil, fmt.Errorf("--state %s is no state of publish --follow (%v): name another file; if you remove it, the whole log is counted again", path, err)
	case state.Log != log:
		return nil, nil, boot.BadUsage("--state %s is that of %s: give each log a state of its own", path, state.Log)
	case state.Subject != subject+".follow-"+state.Source:
		return nil, nil, boot.BadUsage("--state %s belongs to messages on %s: give the same --subject, or another state", path, state.Subject)
	}
	return f, state, nil
}

func (f *stateFile) close() { f.locks.Close() }

// save replaces the file. After a crash of the machine there is the old one or the new one.
func (f *stateFile) save(state *followState) error {
	if err := f.replace(state); err != nil {
		return fmt.Errorf("write the state of --follow: %w", err)
	}
	return nil
}

func (f *stateFile) replace(state *followState) error {
	text, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	next, err := os.OpenFile(f.path+".next", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = next.Write(append(text, '\n'))
	err = errors.Join(err, next.Sync(), next.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.path+".next", f.path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

package window

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// The texts of the rules that cursors name are kept once per namespace. This package does not interpret them.

// KeepRules writes texts, by fingerprint, that Redis does not hold. Call it before a cursor names one.
func (s *Store) KeepRules(ctx context.Context, texts map[string][]byte) error {
	if len(texts) == 0 {
		return nil
	}
	key := s.keys.rules()
	kept, err := s.RulesKept(ctx)
	if err != nil {
		return err
	}
	var missing []any
	for fingerprint, text := range texts {
		if !slices.Contains(kept, fingerprint) {
			missing = append(missing, fingerprint, text)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := s.Client.HSet(ctx, key, missing...).Err(); err != nil {
		return fmt.Errorf("keep rules: %w", foreign(key, err))
	}
	return nil
}

// RulesText reads the text with a fingerprint. found is false if Redis does not hold it.
func (s *Store) RulesText(ctx context.Context, fingerprint string) (text []byte, found bool, err error) {
	text, err = s.Client.HGet(ctx, s.keys.rules(), fingerprint).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read rules %s: %w", fingerprint, foreign(s.keys.rules(), err))
	}
	return text, true, nil
}

// RulesKept lists the fingerprints of the texts that Redis holds.
func (s *Store) RulesKept(ctx context.Context) ([]string, error) {
	kept, err := s.Client.HKeys(ctx, s.keys.rules()).Result()
	if err != nil {
		return nil, fmt.Errorf("list the rules that are kept: %w", foreign(s.keys.rules(), err))
	}
	return kept, nil
}

// DropRules removes texts that no cursor names any more.
func (s *Store) DropRules(ctx context.Context, fingerprints []string) error {
	if err := s.Client.HDel(ctx, s.keys.rules(), fingerprints...).Err(); err != nil {
		return fmt.Errorf("remove rules: %w", foreign(s.keys.rules(), err))
	}
	return nil
}

// RulesKey returns the key of the texts, for messages.
func (s *Store) RulesKey() string { return s.keys.rules() }

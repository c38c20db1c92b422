package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window/internal/cluster"
)

// RuleTexts are the texts of the rules that cursors name, once per namespace. This package does not interpret
// them.
type RuleTexts struct {
	client *cluster.Client
	key    string
}

// Keep writes texts, by fingerprint, that Redis does not hold. Call it before a cursor names one.
func (r RuleTexts) Keep(ctx context.Context, texts map[string][]byte) error {
	if len(texts) == 0 {
		return nil
	}
	kept, err := r.Fingerprints(ctx)
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
	if err := r.client.HSet(ctx, r.key, missing...).Err(); err != nil {
		return fmt.Errorf("keep rules: %w", cluster.WrapForeign(r.key, err))
	}
	return nil
}

// Read reads the text with a fingerprint. found is false if Redis does not hold it.
func (r RuleTexts) Read(ctx context.Context, fingerprint string) (text []byte, found bool, err error) {
	text, err = r.client.HGet(ctx, r.key, fingerprint).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read rules %s: %w", fingerprint, cluster.WrapForeign(r.key, err))
	}
	return text, true, nil
}

// Fingerprints lists the fingerprints of the texts that Redis holds.
func (r RuleTexts) Fingerprints(ctx context.Context) ([]string, error) {
	kept, err := r.client.HKeys(ctx, r.key).Result()
	if err != nil {
		return nil, fmt.Errorf("list the rules that are kept: %w", cluster.WrapForeign(r.key, err))
	}
	return kept, nil
}

// Remove removes texts that no cursor names any more.
func (r RuleTexts) Remove(ctx context.Context, fingerprints []string) error {
	if err := r.client.HDel(ctx, r.key, fingerprints...).Err(); err != nil {
		return fmt.Errorf("remove rules: %w", cluster.WrapForeign(r.key, err))
	}
	return nil
}

// Key returns the key of the texts, for messages.
func (r RuleTexts) Key() string { return r.key }

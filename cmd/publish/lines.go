package main

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"tallyroll/internal/human"
)

// maxLine bounds a line in bytes; a longer one is a bad line.
const maxLine = 1 << 20

var errLongLine = fmt.Errorf("the line is longer than %d bytes", maxLine)

// lineCutter cuts chunks of bytes into lines. It copies only a line that spans chunks, at most maxLine bytes.
type lineCutter struct {
	each func(number int64, line []byte, long bool) error

	number int64  // of the last line that ended
	carry  []byte // the beginning of the line that has not ended
	long   bool   // that line is longer than maxLine; the rest of it is dropped
}

// cut passes each line that ends in the chunk to each, without its line end.
func (c *lineCutter) cut(chunk []byte) error {
	for len(chunk) > 0 {
		i := bytes.IndexByte(chunk, '\n')
		if i < 0 {
			c.keep(chunk)
			return nil
		}
		line := chunk[:i]
		if len(c.carry) > 0 || c.long {
			c.keep(line)
			line = c.carry
		}
		chunk = chunk[i+1:]
		if err := c.end(line); err != nil {
			return err
		}
	}
	return nil
}

func (c *lineCutter) finish() error {
	if len(c.carry) == 0 && !c.long {
		return nil
	}
	return c.end(c.carry)
}

func (c *lineCutter) keep(part []byte) {
	if c.long || len(c.carry)+len(part) > maxLine+1 { // one more for a carriage return
		c.long, c.carry = true, c.carry[:0]
		return
	}
	c.carry = append(c.carry, part...)
}

func (c *lineCutter) end(line []byte) error {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	long := c.long || len(line) > maxLine
	c.number++
	c.carry, c.long = c.carry[:0], false
	return c.each(c.number, line, long)
}

type chunk struct {
	bytes []byte
	err   error
}

const chunkSize = 256 << 10

func readChunks(ctx context.Context, in io.Reader, spare <-chan []byte, chunks chan<- chunk) {
	for {
		var c chunk
		select {
		case c.bytes = <-spare:
		case <-ctx.Done():
			return
		}
		n, err := in.Read(c.bytes)
		c.bytes, c.err = c.bytes[:n], err
		select {
		case chunks <- c:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

type badLines struct {
	count  int64
	first  int64 // its line number; 0: unknown
	reason error // why the first one is bad
}

func (b *badLines) add(count, number int64, reason error) {
	if b.count == 0 {
		b.first, b.reason = number, reason
	}
	b.count += count
}

func count(n int64) string { return human.Thousands(float64(n)) }

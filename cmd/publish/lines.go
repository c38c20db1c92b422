package main

import (
	"bytes"
	"fmt"

	"tallyroll/internal/hit"
)

// maxLine is the longest line that is parsed; a longer one is a bad line.
const maxLine = 1 << 20

var errLongLine = fmt.Errorf("the line is longer than %d bytes", maxLine)

// parser reads the lines of the input's form.
func (o options) parser() func(line []byte) (hit.Hit, error) {
	switch o.format {
	case "combined":
		return combinedParser(o.key)
	case "ndjson":
		return hit.NewParser().Parse
	}
	return parseName
}

// parseName takes the whole line for the counter's name.
func parseName(line []byte) (hit.Hit, error) {
	return hit.Hit{Counter: line, N: 1, At: hit.NoTime}, hit.CheckName(line)
}

// lineCutter cuts chunks of bytes, as they are read, into lines. It copies
// only the line that two chunks share, and keeps at most maxLine bytes of it.
type lineCutter struct {
	each func(number int64, line []byte, long bool) error

	number int64  // of the last line that ended
	carry  []byte // the beginning of a line whose end has not come yet
	long   bool   // that line is longer than maxLine; the rest of it is dropped
}

// cut hands each line that ends in the chunk to each, without its line end.
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

// finish ends a last line that has no line end.
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

package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
	"unicode"
)

// shown writes a name so that it tells what it is. Characters that turn the direction of what follows are written as
// JSON writes them: a name could look like another one with them, or change the text around it.
func shown(name string) string {
	if strings.IndexFunc(name, isTurn) < 0 {
		return name
	}
	var out strings.Builder
	for _, r := range name {
		if isTurn(r) {
			fmt.Fprintf(&out, "\\u%04x", r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}

func isTurn(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }

// apart is a name within a sentence: letters that are written from the right leave the rest of it alone.
func apart(name string) string {
	if strings.IndexFunc(name, func(r rune) bool { return r > unicode.MaxASCII }) < 0 {
		return name
	}
	return "\u2068" + name + "\u2069"
}

// xmlText writes a name as XML text. Characters that XML cannot express, such as U+FFFE,
// become U+FFFD (XML 1.0, 2.2).
func xmlText(name string) string {
	var out bytes.Buffer
	_ = xml.EscapeText(&out, []byte(name)) // a buffer takes everything
	return out.String()
}

// fittedApart are names that stand beside each other, each shortened if there is no
// room for the whole. Words that all of them begin and end with go first, so that
// what differs stays.
func fittedApart(names []string, size, room float64) []string {
	head, tail := common(names)
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = name
		if textWidth(name, size) > room {
			out[i] = fittedAround(name[:head], name[head:len(name)-tail], name[len(name)-tail:], size, room)
		}
	}
	return out
}

// fittedAround keeps the middle, and of what is around it as much as there is room for.
func fittedAround(head, middle, tail string, size, room float64) string {
	before, after := []rune(head), []rune(tail)
	for kept := len(before) + len(after) - 1; kept >= 0 && middle != ""; kept-- {
		end := min(kept/3, len(after))
		begin := min(kept-end, len(before))
		short := head + middle
		if begin < len(before) {
			short = string(before[:begin]) + "…" + middle
		}
		if end < len(after) {
			short += "…" + string(after[len(after)-end:])
		} else {
			short += tail
		}
		if textWidth(short, size) <= room {
			return short
		}
	}
	if middle == "" {
		middle = head + tail
	}
	return fitted(middle, size, room)
}

// fitted returns a name, or as much of its beginning and end as there is room for. It
// keeps the end because different names often differ there.
func fitted(name string, size, room float64) string {
	if textWidth(name, size) <= room {
		return name
	}
	runes := []rune(name)
	for kept := len(runes) - 1; kept >= 0; kept-- {
		tail := kept / 3
		short := string(runes[:kept-tail]) + "…" + string(runes[len(runes)-tail:])
		if textWidth(short, size) <= room {
			return short
		}
	}
	return ""
}

// common are the lengths of the words that all names begin with, and of those that
// all end with behind them.
func common(names []string) (head, tail int) {
	first := names[0]
	head = len(first)
	for _, name := range names {
		head = min(head, len(name))
		for first[:head] != name[:head] {
			head--
		}
	}
	head = strings.LastIndexFunc(first[:head], isSeparator) + 1
	tail = len(first) - head
	for _, name := range names {
		tail = min(tail, len(name)-head)
		for first[len(first)-tail:] != name[len(name)-tail:] {
			tail--
		}
	}
	behind := first[len(first)-tail:]
	if i := strings.IndexFunc(behind, isSeparator); i >= 0 {
		return head, len(behind) - i
	}
	return head, 0
}

func isSeparator(r rune) bool { return strings.ContainsRune("/.-_:,;?&= ", r) }

// textWidth estimates the most pixels that a text takes. The reader chooses the font, so
// it assumes the wide ones among the common fonts, DejaVu Sans and Verdana.
func textWidth(text string, size float64) float64 {
	ems := 0.0
	for _, r := range text {
		ems += runeWidth(r)
	}
	return ems * size
}

// runeWidth is the width of a character in ems.
func runeWidth(r rune) float64 {
	switch {
	case strings.ContainsRune(" !'(),-./:;I[]fijlrt|", r):
		return 0.46
	case strings.ContainsRune("MWmw@%", r):
		return 1.08
	case unicode.IsDigit(r) || 'a' <= r && r <= 'z':
		return 0.65
	case r < unicode.MaxASCII:
		return 0.83
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0 // it is drawn onto the one before
	case r < 0x250: // Latin
		return 0.9
	case r < 0x1100:
		return 1.1
	case 0x2010 <= r && r <= 0x2027: // … and other punctuation
		return 1
	}
	return 1.35 // as wide as emoji are
}

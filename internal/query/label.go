package query

import (
	"bytes"
	"encoding/xml"
	"strings"
	"unicode"
)

// escaped is a name as text of XML. What XML has no way to write at all becomes
// U+FFFD, such as U+FFFE (XML 1.0, 2.2).
func escaped(name string) string {
	var out bytes.Buffer
	_ = xml.EscapeText(&out, []byte(name)) // a buffer takes everything
	return out.String()
}

// fitted is a name, or as much of its beginning and its end as there is room for:
// names that differ often differ at their end.
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

// textWidth is about the most pixels that a text takes. The font is the reader's,
// so it reckons with the wide ones among the common fonts, DejaVu Sans and Verdana.
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

package hit

// readPlain reads an object in nearly all producers' form, many times faster than a JSON decoder: the fields
// key, n, ts and unique, at most once, texts of printable ASCII without escapes, numbers without sign, and no
// white space but a space after a colon or comma. Otherwise it returns false, and what it has read is
// meaningless.
func (o *object) readPlain(raw []byte) bool {
	var hasN, hasTS bool
	for i := 1; len(raw) > 1 && raw[0] == '{'; i++ {
		switch rest := raw[i:]; {
		case after(rest, `"key":`) && !o.hasKey:
			i = pastSpace(raw, i+len(`"key":`))
			end := plainText(raw, i)
			if end < 0 {
				return false
			}
			start := len(o.names)
			o.names = append(o.names, raw[i+1:end]...)
			o.key, o.hasKey = o.names[start:], true
			i = end + 1
		case after(rest, `"n":`) && !hasN:
			hasN = true
			if o.n, i = plainNumber(raw, pastSpace(raw, i+len(`"n":`))); o.n < 1 || o.n > MaxN {
				return false
			}
		case after(rest, `"ts":`) && !hasTS:
			hasTS = true
			if o.at, i = plainNumber(raw, pastSpace(raw, i+len(`"ts":`))); o.at < 0 {
				return false
			}
		case after(rest, `"unique":`) && o.unique == nil:
			i = pastSpace(raw, i+len(`"unique":`))
			end := plainText(raw, i)
			if end < 0 || end == i+1 || end-i > MaxUnique+1 {
				return false
			}
			start := len(o.names)
			o.names = append(o.names, raw[i+1:end]...)
			o.unique = o.names[start:len(o.names):len(o.names)]
			i = end + 1
		default:
			return false
		}
		switch {
		case i == len(raw)-1 && raw[i] == '}':
			return true
		case i >= len(raw) || raw[i] != ',':
			return false
		}
		i = pastSpace(raw, i+1) - 1
	}
	return false
}

func after(b []byte, text string) bool { return len(b) >= len(text) && string(b[:len(text)]) == text }

// pastSpace returns the position after the optional space at i.
func pastSpace(b []byte, i int) int {
	if i < len(b) && b[i] == ' ' {
		i++
	}
	return i
}

// plainText returns the position of the closing quote of the text that opens at i, or -1.
func plainText(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i
		case c == '\\' || c < ' ' || c > '~':
			return -1
		}
	}
	return -1
}

// plainNumber returns the number at i (at most 18 digits, no leading zero) and the position after it, or -1.
func plainNumber(b []byte, i int) (n int64, end int) {
	for end = i; end < len(b) && b[end] >= '0' && b[end] <= '9'; end++ {
		if n = 10*n + int64(b[end]-'0'); end-i == 18 {
			return -1, end
		}
	}
	if end == i || b[i] == '0' && end > i+1 {
		return -1, end
	}
	return n, end
}

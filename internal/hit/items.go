package hit

import "math"

// IsObject reports whether b is one JSON object, with white space around it or not.
func IsObject(b []byte) bool { return isObject(trimSpace(b)) }

// Items takes a body apart where Decoder does, and judges nothing: the one object, the
// lines, or the elements of the array. rest is a body by itself, which Decoder refuses as it refuses
// what is wrong after the last element; nil if nothing is.
func Items(body []byte) (items [][]byte, rest []byte) {
	if Blank(body) {
		return nil, nil
	}
	s := Splitter{
		Most: math.MaxInt,
		Item: func(_ int, raw []byte) bool {
			items = append(items, raw)
			return true
		},
		Wrong: func(_ int, raw []byte, detail string) {
			switch detail {
			case notClosed:
				rest = append([]byte("["), raw...)
			case moreFollows:
				rest = append([]byte("[]"), raw...)
			default: // the whole body
				items = append(items, trimSpace(raw))
			}
		},
	}
	s.Split(body)
	return items, rest
}

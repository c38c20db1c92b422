package hit

// Field is a field of a hit's object. Readers and the OpenAPI document of collect have the fields once more;
// tests compare them with Fields.
type Field struct {
	Name  string
	About string // what it means, as the OpenAPI document of collect has it
	Types string // of its JSON values, in the words of JSON Schema
	// Least and Most bound a number. Of a string alone they bound its bytes, and of a time, Unix milliseconds.
	Least, Most int64
	// Mistakes are names that producers probably mean by it: a hit that has one would count wrongly.
	Mistakes []string
}

// Fields are the fields of a hit. All may be missing. object.readField reads a further one; unless
// object.readPlain does, too, each hit that has it is left to a JSON decoder, which is many times slower.
var Fields = []Field{
	{"key", "The counter: 1 to 512 bytes of UTF-8 without control characters.", "string", 1, MaxName, []string{"Key"}},
	{"n", "How many happened. 1 if it is missing.", "integer", 1, MaxN, []string{"N", "count", "value"}},
	{"ts", "When: Unix milliseconds as an integer, or an RFC 3339 string. When JetStream stores it if it is missing.",
		"integer string", MinTime, MaxTime, []string{"time", "timestamp"}},
	{"unique", "Whom or what the hit is of, such as a visitor, to count unique values: " +
		"1 to 512 bytes of UTF-8.", "string", 1, MaxUnique, []string{"Unique", "uniques", "uniq"}},
	{"all", "false leaves the hit out of the sum of all hits. Default: true.", "boolean", 0, 0,
		[]string{"All"}},
}

// rightNames has the names of fields by the mistakes for them.
var rightNames = func() map[string]string {
	out := make(map[string]string)
	for _, f := range Fields {
		for _, mistake := range f.Mistakes {
			out[mistake] = f.Name
		}
	}
	return out
}()

// Package schema is what a namespace keeps in Redis: the keys, the layout record, the cursors, the list of
// streams, the claims about idle streams and the texts of rules. It reads and writes them; what they mean for
// counts, its callers decide. A value that cannot be parsed is a *window.ForeignError that names the key.
package schema

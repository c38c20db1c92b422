// Package retier changes the tiers of a namespace in which no worker counts. Run builds the new tiers' cells
// from the old ones under the keys of another generation, while readers still answer from the old ones, and
// then switches the layout record. Confirm deletes the old keys. A change that was interrupted can be
// continued or abandoned; the layout record holds its phase (schema.Change), and forbids counting meanwhile.
package retier

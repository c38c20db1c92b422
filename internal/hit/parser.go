package hit

// Parser reads hits for producers, who name their counters in the hits. It reuses its
// memory, so a Parser belongs to one goroutine.
type Parser struct {
	object *object
	bodies *Decoder // for ParseBody, with the same object
}

// NewParser returns a Parser.
func NewParser() *Parser {
	o := newObject()
	bodies := newDecoder(Limits{}, o)
	bodies.producer = true
	return &Parser{object: o, bodies: bodies}
}

// ParseBody reads a whole message's body, in each of its forms. Every object must have a key, so an
// empty body is refused. If the body has more than maxHits hits, all of it is refused. The
// hits have NoTime if they have no ts. The result is valid until the next call, as long as
// nobody changes the body.
func (p *Parser) ParseBody(body []byte, maxHits int) ([]Hit, []Reject) {
	p.bodies.limits.MaxHits, p.bodies.splitter.Most = maxHits, maxHits
	return p.bodies.Decode("", NoTime, body)
}

// Parse reads a JSON object that has a key; white space may be around it. The hit has
// NoTime if the object has no ts. Its counter is valid until the next call. The error
// is a *Refusal.
func (p *Parser) Parse(line []byte) (Hit, error) {
	p.object.forget()
	var h Hit
	if refused := p.object.read(&h, line, "", NoTime); refused != nil {
		return Hit{}, refused
	}
	return h, nil
}

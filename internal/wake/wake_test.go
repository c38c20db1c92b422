package wake

import "testing"

func TestSignalHoldsOneToken(t *testing.T) {
	s := New()
	s.Give()
	s.Give() // does not wait for a receiver
	<-s
	select {
	case <-s:
		t.Error("two tokens")
	default:
	}
	s.Give()
	<-s
}

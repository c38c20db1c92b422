package wait

import "testing"

func TestSignalHoldsOneToken(t *testing.T) {
	s := NewSignal()
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

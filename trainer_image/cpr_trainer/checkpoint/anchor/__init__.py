"""The leader's saves: the dense state, anchors of the whole job, and the deletion of unneeded saves."""

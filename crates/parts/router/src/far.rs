//! Requests across nodes: how this node's router reaches instances of another node through the
//! router there, and serves those of its own to others. One sealed connection carries one request
//! after the other, as `router_core::far` has it. It must not know the store; the control task says
//! which nodes there are, the node port hands callers over.

pub mod ask;
pub mod caller;
pub mod dial;
pub mod host;
pub mod outcome;
pub mod peer;
pub mod sealed;

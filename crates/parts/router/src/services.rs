//! Ports of applications that speak something else than HTTP: connections are passed on whole, and
//! nothing in them is understood. What comes there goes to ready instances of the serving release.

pub mod far;
pub mod host;
mod idle;
pub mod tcp;
pub mod udp;

//! Certificates as far as the platform has to understand them: what stands in one, whether a chain
//! and a key belong together, and which one a client gets that asks for a name. It reads bytes and
//! knows no file, no store and no connection; the router and the API drive it.

mod der;
pub mod facts;
pub mod pair;
pub mod shelf;

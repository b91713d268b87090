//! Machines with addresses of their own on a network that is cut, one way and both: what the stores
//! of both sides accept is on all once they meet again, and an application goes on.

mod application;
mod checkers;
mod full_disk;
pub mod lab;
mod migrations;
mod reach;
mod store;

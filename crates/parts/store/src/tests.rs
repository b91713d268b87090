//! Tests of the store on a real disk, through its trait.

mod bytes;
mod child;
mod cleaning;
mod commit_thread;
mod crash;
mod damage;
pub mod fixture;
mod full;
mod local;
mod memory;
mod powercut;
mod syncing;

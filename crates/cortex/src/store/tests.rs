//! The store on a real disk, through its trait.

mod bytes;
mod child;
mod cleaning;
mod contract;
mod crash;
mod damage;
mod fixture;
mod full;
mod memory;
mod powercut;
mod syncing;
mod terms;

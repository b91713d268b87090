//! What the router decides: which application a request is for, which endpoint answers it, when an
//! endpoint is left alone, what may be tried again, which file a path means, and how HTTP/1.1 is
//! read and written. Pure functions, called by the router's threads directly. (Ariel in the
//! reference system.)

pub mod balance;
pub mod book;
pub mod breaker;
pub mod complaints;
pub mod detect;
pub mod fair;
pub mod far;
pub mod files;
pub mod flows;
pub mod gate;
pub mod h2;
pub mod http;
pub mod pages;
pub mod proxy_protocol;
pub mod ramp;
pub mod request_key;
pub mod retry;
pub mod routes;
pub mod service_times;
pub mod tally;
pub mod wall;
pub mod weights;

"""Many run folders as one table: totals by project, tag, zone and month, exports, and a summary that can be checked."""

"""File input and output: shards in, tables and shards out, on local disks and on S3."""

"""The workers and partitions that the measured loads need, from the history in heartbeats.

    loads --history--> hours of jobs --> busiest hours by week -+-fleets--> workers
                                                                +-advice--> partitions

Modules
    history    loads of five minutes as hours of every job, from the dashboard's store, an archive of
               heartbeats, or Parquet files of these columns
    fleets     the workers that a fleet needs, placed by `app.placement.model.bin_packing`, the controller's
               own code; pure
    advice     partitions and workers of workloads, by `app.sizing.recommendation`; pure
    report     the JSON document, and its tables for people

Method
1. A job's hour is the mean of its five-minute means.
2. A week is seven days that end with the last measured hour. A fleet's load is the cpu of its hour of most
   cpu and the network of its hour of most network in the last week, with the larger memory. A job without
   load in that week counts only in the past.
3. Each earlier week has the same figure, beside the workers that ran then, so that growth shows.
"""
